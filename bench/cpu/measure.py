"""How things are compared: in turns, in one run, by medians, with an eye on what else the machine does."""

from __future__ import annotations

import itertools
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import psutil

QUIET_CORES = 0.1
"""Cores that other processes may use before a figure is called noisy."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison.

    Attributes:
        case: what was measured.
        unit: of ``ours`` and ``peer``.
        ours, peer: one value a round; ``peer`` is empty where the target is an absolute figure.
        peer_name: whom we are compared with.
        target, aim: what we must and what we want to reach: a ratio ours / peer, or the figure itself without a peer.
        at_most: smaller is better.
        notes: what a reader should know, such as latencies.
        foreign_cores: cores that other processes used meanwhile.
    """

    case: str
    unit: str
    ours: list[float]
    target: float
    peer: list[float] = []
    peer_name: str = ""
    aim: float | None = None
    at_most: bool = False
    notes: str = ""
    foreign_cores: float = 0.0

    @property
    def reached(self) -> float:
        """The figure that target and aim are about."""
        ours = statistics.median(self.ours)
        return ours / statistics.median(self.peer) if self.peer else ours

    @property
    def passed(self) -> bool:
        """Whether the target is reached."""
        return self.reached <= self.target if self.at_most else self.reached >= self.target

    @property
    def noisy(self) -> bool:
        """Whether the figure should not be trusted."""
        return self.foreign_cores > QUIET_CORES


def alternate(rounds: int, measures: Mapping[str, Callable[[int], float]]) -> dict[str, list[float]]:
    """Run the measures in turns, after one round that warms up and is dropped.

    Each measure gets a seed that no other call has, for prompts that nobody has cached.
    """
    seeds = itertools.count(1)
    values: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds + 1):
        for name, measure in measures.items():
            value = measure(next(seeds))
            print(f"  round {number}: {name} {value:,.2f}", file=sys.stderr)
            if number > 0:
                values[name].append(value)
    return values


class ForeignCpu:
    """Cores used by processes that are not ours, between construction and ``cores()``.

    Counts the machine's busy and stolen time less that of this process and of its descendants that have ended, so
    ask when the subprocesses of a measurement are gone.
    """

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._foreign_s = _busy_s() - _own_s()

    def cores(self) -> float:
        """Average since construction."""
        return max(0.0, _busy_s() - _own_s() - self._foreign_s) / (time.monotonic() - self._started_at)


def busiest_processes(seconds: float = 2.0, limit: int = 5) -> Sequence[tuple[float, str]]:
    """(cores, command line) of other processes that use the processor now, the busiest first."""
    processes = [process for process in psutil.process_iter() if process.pid != os.getpid()]
    for process in processes:
        _cpu_percent(process)
    time.sleep(seconds)
    usage = [(_cpu_percent(process) / 100, process) for process in processes]
    busy = sorted(((cores, process) for cores, process in usage if cores > 0.02), key=lambda pair: -pair[0])
    return [(cores, _command(process)) for cores, process in busy[:limit]]


def _cpu_percent(process: psutil.Process) -> float:
    try:
        return float(process.cpu_percent())
    except psutil.Error:
        return 0.0


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:100] or process.name()
    except psutil.Error:
        return "?"


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def _own_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
