"""``python -m bench.cpu [CASE ...]``: run benchmarks from the repository root and print the table."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from .context import Context, prepare_model
from .engine_case import run_engine_case
from .http_case import run_http_case
from .measure import QUIET_CORES, Row, busiest_processes
from .null_case import run_null_case
from .peers import install_peers
from .report import make_report, to_markdown
from .startup_case import run_startup_case, run_wheel_case

_CASES: dict[str, Callable[[Context], list[Row]]] = {
    "engine": run_engine_case,
    "http": run_http_case,
    "null": run_null_case,
    "startup": run_startup_case,
    "wheel": run_wheel_case,
}


def _check_quiet(allow_noise: bool) -> str:
    """The load averages; refuses to measure while other processes use the processor."""
    uptime = "load averages " + " ".join(f"{load:.2f}" for load in os.getloadavg())
    print(uptime, file=sys.stderr)
    busy = busiest_processes()
    for cores, command in busy:
        print(f"  {cores:.2f} cores: {command}", file=sys.stderr)
    if sum(cores for cores, _ in busy) > QUIET_CORES and not allow_noise:
        raise click.ClickException("Other processes use the processor; stop them, or add --allow-noise.")
    return uptime


@click.command()
@click.argument("cases", nargs=-1, type=click.Choice(list(_CASES)), metavar="[CASE ...]")
@click.option("--json", "output", type=click.Path(dir_okay=False, path_type=Path), help="Write the result here too.")
@click.option("--rounds", default=5, show_default=True, help="Measurements of each figure; the median counts.")
@click.option("--threads", default=2, show_default=True, help="Compute threads of an engine that runs alone.")
@click.option(
    "--peers",
    "environment",
    type=click.Path(file_okay=False, path_type=Path),
    default=".venv-bench",
    show_default=True,
    help="Virtual environment of the peers; made when it is missing.",
)
@click.option("--allow-noise", is_flag=True, help="Measure although other processes use the processor.")
def main(
    *, cases: tuple[str, ...], output: Path | None, rounds: int, threads: int, environment: Path, allow_noise: bool
) -> None:
    """Benchmark tgi-serve on this machine's CPU against its peers. CASES: engine http null startup wheel (all)."""
    # A terminated run unwinds like an interrupted one, so that no server stays behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
    peers = install_peers(environment)
    model_dir, model_gguf = prepare_model(environment / "models")
    context = Context(peers=peers, model_dir=model_dir, model_gguf=model_gguf, rounds=rounds, threads=threads)
    uptime = _check_quiet(allow_noise)
    rows = []
    for case in cases or _CASES:
        print(f"Running {case} ...", file=sys.stderr)
        rows += _CASES[case](context)
    report = make_report(rows, uptime)
    print(to_markdown(report))
    if output is not None:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    if not all(row.passed for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
