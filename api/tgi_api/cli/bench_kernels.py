"""``bench kernels``: how fast a backend's operations are, one by one, with the shapes of a model."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from tgi_api.cli.arguments import Arguments
from tgi_api.cli.bench_run import commas, installed_versions, run_bench
from tgi_api.cli.options import Group, Option
from tgi_api.cli.values import any_path, existing_directory, integer, text
from tgi_core.benchmark.figures import Ceilings, KernelFigure, StepFigure
from tgi_core.errors import ExitCode, StartupError
from tgi_core.model_folder import ModelFolder
from tgi_core.plugins import Plugins

_WIDTH = 110
"""Of the tables where the output is no terminal."""


class BenchKernelsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One field for each option of the same name."""

    model_id: Path | None = None
    backend: str = "auto"
    attention: str = "auto"
    dtype: str = "auto"
    rows: tuple[int, ...] = (1, 32, 256)
    context: int = 1024
    prefill: int = 4096
    json: Path | None = None


class KernelReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run measured, and on what."""

    date: str
    command: str
    model: str
    backend: str
    device: str
    attention: str
    dtype: str
    versions: dict[str, str]
    notes: list[str]
    ceilings: Ceilings
    steps: list[StepFigure]


def _option(group: Group, flag: str, metavar: str, read: Any, help: str) -> Option:
    return Option(flag=flag, metavar=metavar, read=read, help=help, group=group)


BENCH_KERNELS_OPTIONS: tuple[Option, ...] = (
    _option(Group.MODEL, "--model-id", "DIR", existing_directory, "Folder with the model's config.json; no weights"),
    _option(Group.MODEL, "--dtype", "NAME", text, "Type of weights and activations; auto: the checkpoint's"),
    _option(Group.DEVICE, "--backend", "NAME", text, "Backend to measure; auto: the best one that finds a device"),
    _option(Group.DEVICE, "--attention", "NAME", text, "Implementation of attention; auto: the backend's choice"),
    _option(Group.OPERATION, "--rows", "N,..", commas(integer(1)), "Decode steps: how many requests, each by itself"),
    _option(Group.OPERATION, "--context", "N", integer(1), "Decode steps: tokens in each request's cache"),
    _option(Group.OPERATION, "--prefill", "N", integer(1), "Prefill step: tokens of its one prompt"),
    _option(Group.OPERATION, "--json", "FILE", any_path, "Where to write the figures"),
)


def bench_kernels(arguments: Arguments) -> int:
    """Measure every operation and print its figures; returns the exit code."""
    return run_bench(arguments, BenchKernelsSettings, _measure)


def _measure(settings: BenchKernelsSettings) -> KernelReport:
    if settings.model_id is None:
        raise StartupError("No model is given.", "Add --model-id DIR, a folder with a config.json.", ExitCode.USAGE)
    from tgi_core.benchmark.kernels import KernelBenchmark
    from tgi_core.engine.process import choose_dtype

    folder = ModelFolder(settings.model_id)
    backend = Plugins.discover().choose_backend(settings.backend)
    dtype = choose_dtype(settings.dtype, folder.dtype_name, backend, backend.capabilities())
    benchmark = KernelBenchmark(backend, folder.path, dtype, settings.attention)
    device, ceilings = backend.probe().devices[0].name, benchmark.ceilings
    print(f"{folder.path.name} in {dtype} on {device}, attention {benchmark.attention}")
    print(
        f"a large copy {_bytes_rate(ceilings.copy_tb_per_s)}, "
        f"a large matrix product {_flops_rate(ceilings.matrix_tflop_per_s)}",
        flush=True,
    )
    for note in benchmark.notes:
        print(f"note: {note}", flush=True)
    steps = []
    for rows in settings.rows:
        steps.append(benchmark.decode(rows, settings.context))
        _print_step(steps[-1])
    steps.append(benchmark.prefill(settings.prefill))
    _print_step(steps[-1])
    return KernelReport(
        date=time.strftime("%Y-%m-%d"),
        command=" ".join(["tgi-serve", *sys.argv[1:]]),
        model=folder.path.name,
        backend=backend.info.name,
        device=device,
        attention=benchmark.attention,
        dtype=dtype,
        versions=installed_versions(),
        notes=benchmark.notes,
        ceilings=ceilings,
        steps=steps,
    )


def _print_step(step: StepFigure) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{step.step}, {step.rows:,} rows at {step.tokens:,} tokens"
    if step.step == "prefill":
        title = f"prefill of {step.tokens:,} tokens"
    table = Table(title=title, title_justify="left", caption_justify="left", caption=_shares(step))
    table.add_column("operation")
    for heading in ("µs", "runs a step", "ms a step", "achieved", "of the ceiling"):
        table.add_column(heading, justify="right")
    for figure in step.operations:
        table.add_row(
            figure.operation,
            f"{figure.time_us:,.1f}",
            f"{figure.launches}" if figure.launches else "–",
            f"{figure.step_ms:,.3f}" if figure.launches else "–",
            _achieved(figure),
            f"{figure.ceiling_share:.0%} {figure.ceiling}",
        )
    # A pipe has no width of its own, and figures must not be cut.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    console.print()
    console.print(table)


def _shares(step: StepFigure) -> str:
    parts = (f"{kind} {part_ms:,.3f} ms ({part_ms / step.total_ms:.0%})" for kind, part_ms in step.kinds_ms.items())
    return f"together {step.total_ms:,.3f} ms: {', '.join(parts)}"


def _achieved(figure: KernelFigure) -> str:
    if figure.ceiling == "copy":
        return _bytes_rate(figure.tb_per_s)
    return _flops_rate(figure.tflop_per_s)


def _bytes_rate(tb_per_s: float) -> str:
    return f"{tb_per_s:.2f} TB/s" if tb_per_s >= 1 else f"{tb_per_s * 1e3:.1f} GB/s"


def _flops_rate(tflop_per_s: float) -> str:
    return f"{tflop_per_s:.1f} TFLOP/s" if tflop_per_s >= 1 else f"{tflop_per_s * 1e3:.1f} GFLOP/s"
