"""``bench engine``: how fast an engine is on this machine, without HTTP."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from tgi_api.cli.arguments import Arguments
from tgi_api.cli.bench_run import commas, installed_versions, run_bench
from tgi_api.cli.options import Group, Option
from tgi_api.cli.values import any_path, choice, existing_directory, fraction, integer, number_above, text
from tgi_core.benchmark.engine import BenchCase, CaseResult, EngineBenchmark, StepResult
from tgi_core.config import EngineConfig
from tgi_core.model_folder import ModelFolder
from tgi_core.plugins import Plugins


class BenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One field for each option of the same name."""

    model_id: Path = Path()
    backend: str = "auto"
    dtype: str = "auto"
    attention: str = "auto"
    load_format: str = "dummy"
    cases: tuple[BenchCase, ...] = ()
    decode_steps: tuple[int, ...] = ()
    max_batch_size: int = 256
    max_step_tokens: int = 8192
    max_total_tokens: int | None = None
    block_size: int | None = None
    memory_fraction: float = 0.9
    memory_tb_per_s: float | None = None
    json: Path | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a run measured, and on what."""

    date: str
    command: str
    model: str
    backend: str
    device: str
    dtype: str
    attention: str
    versions: dict[str, str]
    load_seconds: float
    warm_up_seconds: float
    memory_bytes: dict[str, int]
    cases: list[CaseResult]
    decode_steps: list[StepResult]


def _option(group: Group, flag: str, metavar: str, read: Any, help: str) -> Option:
    return Option(flag=flag, metavar=metavar, read=read, help=help, group=group)


BENCH_OPTIONS: tuple[Option, ...] = (
    _option(Group.MODEL, "--model-id", "DIR", existing_directory, "Folder of the model; a config.json is enough"),
    _option(Group.MODEL, "--dtype", "NAME", text, "Type of weights and activations; auto: the checkpoint's"),
    _option(Group.MODEL, "--load-format", "auto|dummy", choice("auto", "dummy"), "dummy: random weights"),
    _option(Group.DEVICE, "--backend", "NAME", text, "Backend to run on; auto: the best one that finds a device"),
    _option(Group.DEVICE, "--attention", "NAME", text, "Implementation of attention; auto: the backend's choice"),
    _option(Group.DEVICE, "--block-size", "N", integer(1), "Tokens in a KV block"),
    _option(Group.DEVICE, "--memory-fraction", "F", fraction, "Share of the device's memory to use"),
    _option(
        Group.DEVICE, "--memory-tb-per-s", "N", number_above(0), "Memory ceiling that decode steps are held against"
    ),
    _option(Group.SCHEDULING, "--max-batch-size", "N", integer(1), "Requests that run at once"),
    _option(Group.SCHEDULING, "--max-step-tokens", "N", integer(1), "Tokens of a step"),
    _option(Group.SCHEDULING, "--max-total-tokens", "N", integer(2), "Longest sequence; as long as the cases need"),
    _option(
        Group.OPERATION, "--cases", "n1_i128_o256,..", commas(BenchCase.parse), "Requests, input and output tokens"
    ),
    _option(Group.OPERATION, "--decode-steps", "N,..", commas(integer(1)), "Batch sizes whose decode step is measured"),
    _option(Group.OPERATION, "--json", "FILE", any_path, "Where to write the figures"),
)


def bench_engine(arguments: Arguments) -> int:
    """Run the cases and print their figures; returns the exit code."""
    return run_bench(arguments, BenchSettings, _measure)


def _measure(settings: BenchSettings) -> Report:
    from tgi_core.engine.process import choose_dtype

    folder = ModelFolder(settings.model_id)
    backend = Plugins.discover().choose_backend(settings.backend)
    dtype = choose_dtype(settings.dtype, folder.dtype_name, backend, backend.capabilities())
    needed = [case.input_tokens + case.output_tokens for case in settings.cases]
    config = EngineConfig(
        backend=backend.info.name,
        dtype=dtype,
        load_format=settings.load_format,
        max_slots=settings.max_batch_size,
        max_step_tokens=settings.max_step_tokens,
        max_total_tokens=settings.max_total_tokens or max([*needed, 512]),
        block_size=settings.block_size,
        attention=settings.attention,
        memory_fraction=settings.memory_fraction,
    )
    engine = EngineBenchmark(backend, folder, config, dtype)
    print(f"load {engine.load_seconds:.1f} s, warm-up {engine.warm_up_seconds:.1f} s", flush=True)
    steps = []
    for requests in settings.decode_steps:
        step = engine.decode_step(requests)
        steps.append(step)
        print(_step_line(step, settings.memory_tb_per_s), flush=True)
    cases = []
    for case in settings.cases:
        result = engine.run(case)
        cases.append(result)
        print(
            f"{result.case}: {result.seconds:.3f} s, {result.output_tokens_per_s:,.0f} out tok/s, "
            f"{result.input_tokens_per_s:,.0f} in tok/s, {result.steps} steps",
            flush=True,
        )
    engine.close()
    return Report(
        date=time.strftime("%Y-%m-%d"),
        command=" ".join(["tgi-serve", *sys.argv[1:]]),
        model=folder.path.name,
        backend=backend.info.name,
        device=backend.probe().devices[0].name,
        dtype=dtype,
        attention=engine.attention,
        versions=installed_versions(),
        load_seconds=engine.load_seconds,
        warm_up_seconds=engine.warm_up_seconds,
        memory_bytes=dict(engine.memory),
        cases=cases,
        decode_steps=steps,
    )


def _step_line(step: StepResult, ceiling_tb_per_s: float | None) -> str:
    share = "" if ceiling_tb_per_s is None else f", {step.read_tb_per_s / ceiling_tb_per_s:.0%} of the ceiling"
    return (
        f"decode step of {step.requests} at {step.context_tokens} tokens: {step.step_ms:.3f} ms, "
        f"{step.read_tb_per_s:.2f} TB/s{share}"
    )
