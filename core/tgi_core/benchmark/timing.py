"""The time that work takes on a device, without the host's part where the device records work."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence

from tgi_core.contract import Device

Launch = Callable[[], object]

_SAMPLES = 7
_SAMPLE_S = 0.01
"""Length of a sample: long against the wait that ends it."""

_MOST_LAUNCHES = 1000
"""Of a recording or a loop; more would only make recording slow."""


class Stopwatch:
    """Times launches on one device.

    Args:
        device: waits, and records where ``graphs`` is set.
        graphs: launches are recorded once and replayed, so that the time is the device's alone. Otherwise it is that of
            a loop between two waits, which for short work on a fast device is the time of launching.
    """

    def __init__(self, device: Device, *, graphs: bool) -> None:
        self._device = device
        self._graphs = graphs

    def seconds(self, launches: Sequence[Launch], *, captures: bool = True) -> float:
        """Median seconds of one launch.

        Args:
            launches: the same work on buffers of its own each, run in turns.
            captures: whether the work may be recorded.
        """
        turns = itertools.cycle(launches)
        # As many outputs as buffers are kept: one place for all outputs would stay in the device's cache.
        outputs: deque[object] = deque(maxlen=len(launches))

        def run(count: int) -> None:
            for _ in range(count):
                outputs.append(next(turns)())

        run(2)
        launch_s = self._timed(lambda: run(1), 1)
        count = min(_MOST_LAUNCHES, max(1, round(_SAMPLE_S / launch_s)))
        if self._graphs and captures:
            count = max(count, len(launches))
            work = self._device.capture(lambda: run(count)).replay
        else:
            work = lambda: run(count)  # noqa: E731 - the other branch has a bound method
        repeats = max(1, round(_SAMPLE_S / self._timed(work, 1)))
        return statistics.median(self._timed(work, repeats) for _ in range(_SAMPLES)) / count

    def _timed(self, work: Callable[[], None], repeats: int) -> float:
        """Seconds of one ``work``."""
        self._device.synchronize()
        started = time.perf_counter()
        for _ in range(repeats):
            work()
        self._device.synchronize()
        return (time.perf_counter() - started) / repeats
