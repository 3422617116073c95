"""The result of a run as JSON and as a table."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
import psutil

from .measure import Row

_FEATURES = {"avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8"}


class Machine(msgspec.Struct, frozen=True):
    """Where it was measured; ``features`` are the processor's instructions that matter to us."""

    cpu: str
    features: list[str]
    cores: int
    memory_gib: float
    kernel: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        command: the command line that repeats it.
        versions: of what was measured, by name.
        commit: of this repository, with "+changes" when files differ from it.
        uptime: load averages before the run.
    """

    date: str
    command: str
    commit: str
    machine: Machine
    versions: dict[str, str]
    uptime: str
    rows: list[Row]


def make_report(rows: list[Row], uptime: str) -> Report:
    """Describe the run that has just ended."""
    return Report(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command="python -m bench.cpu " + " ".join(sys.argv[1:]),
        commit=_commit(),
        machine=_machine(),
        versions={
            "python": platform.python_version(),
            **{name: version(name) for name in ("tgi-serve", "torch", "uvicorn", "msgspec")},
        },
        uptime=uptime,
        rows=rows,
    )


def to_markdown(report: Report) -> str:
    """The report for people; a ratio is ours / peer."""
    machine = report.machine
    lines = [
        f"{report.date}, commit {report.commit}, `{report.command}`",
        "",
        f"{machine.cpu} ({', '.join(machine.features)}), {machine.cores} cores, {machine.memory_gib:.0f} GiB; "
        f"{machine.kernel}; " + ", ".join(f"{name} {number}" for name, number in report.versions.items()),
        "",
        "| case | unit | ours | peer | ratio | target (aim) | |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_table_line(row) for row in report.rows]
    notes = [f"- {row.case}: {row.notes}" for row in report.rows if row.notes]
    return "\n".join([*lines, "", *notes])


def _table_line(row: Row) -> str:
    peer = f"{_spread(row.peer)} ({row.peer_name})" if row.peer else ""
    ratio = f"{row.reached:.2f}x" if row.peer else ""
    sign = "<=" if row.at_most else ">="
    target = f"{sign} {row.target:,g}" + (f" ({row.aim:,g})" if row.aim is not None else "")
    verdict = "ok" if row.passed else "MISSED"
    if row.noisy:
        verdict += f", noisy: others used {row.foreign_cores:.2f} cores"
    return f"| {row.case} | {row.unit} | {_spread(row.ours)} | {peer} | {ratio} | {target} | {verdict} |"


def _spread(values: list[float]) -> str:
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"**{_figure(middle)}** [{_figure(low)}..{_figure(high)}]" if len(values) > 1 else f"**{_figure(middle)}**"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _machine() -> Machine:
    about_cpu = dict(re.findall(r"^(.*?)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    cpu = about_cpu.get("model name", platform.machine())
    features = sorted(_FEATURES & set(about_cpu.get("flags", "").split()))
    memory_gib = psutil.virtual_memory().total / 1024**3
    return Machine(cpu, features, os.cpu_count() or 0, memory_gib, f"{platform.system()} {platform.release()}")


def _commit() -> str:
    describe = subprocess.run(
        ["git", "describe", "--always", "--dirty=+changes"], capture_output=True, text=True, check=False
    )
    return describe.stdout.strip() or "unknown"
