"""Counters of the bridge."""

from contextlib import contextmanager

from fake_hpu.machine import MACHINE

_NAMES = ("graph_compilation", "cpu_fallback", "memory_defragmentation", "recipe_cache")


class _Metric:
    def __init__(self, name, since=0):
        if name not in _NAMES:
            raise ValueError(f"there is no metric {name!r}")
        self._name = name
        self._since = since

    def stats(self):
        number = MACHINE.compilations - self._since if self._name == "graph_compilation" else 0
        return [("TotalNumber", number), ("TotalTime", 0), ("AvgTime", 0)]


def metric_global(name):
    return _Metric(name)


@contextmanager
def metric_localcontext(name):
    yield _Metric(name, MACHINE.compilations)
