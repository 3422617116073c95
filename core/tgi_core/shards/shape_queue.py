"""Which shapes of a bucketed shard are compiled, and when: the most useful first, as far as memory for them goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tgi_core.contract import Device
from tgi_core.shards.buckets import COVER_SHAPES, ForwardShape
from tgi_core.shards.static_plans import PlanRunner

SHAPES = "compiled shapes"
"""The memory table's line of what is kept free for compiled programs and what they hold."""


class ShapeQueue:
    """Has shapes compiled.

    Args:
        device: tells what they take of its memory.
        plans: compiles and uses them.
        shapes: in the order in which they should become ready.
        reserve_bytes: when they have taken so much no further ones are compiled; 0 for no bound.

    Attributes:
        plans: as given.
    """

    def __init__(self, device: Device, plans: PlanRunner, shapes: Sequence[ForwardShape], reserve_bytes: int) -> None:
        self._device = device
        self.plans = plans
        self._num_shapes = len(shapes)
        self._waiting = deque(shapes)
        self._reserve_bytes = reserve_bytes
        self._taken_bytes = 0

    def prepare_cover(self) -> None:
        """Compile the shapes that together take any step, whatever they take of the memory."""
        for _ in range(COVER_SHAPES):
            self._prepare()

    def prepare_next(self) -> bool:
        """Compile one more, if one waits that may be; whether another one does."""
        if self._waiting:
            self._prepare()
        return bool(self._waiting)

    @property
    def note(self) -> str:
        """What a user should know when serving starts."""
        ready, waiting = len(self.plans.ready), len(self._waiting)
        note = f"{self._num_shapes} shapes of a step, of which {ready} are ready when serving starts"
        reserve = f"{self._reserve_bytes / 2**20:,.1f} MiB of memory for compiled shapes"
        if ready + waiting < self._num_shapes:
            return f"{note}; the others are left out, since these use up {reserve}"
        if waiting:
            note += f" and {waiting} are compiled in idle time"
            if self._reserve_bytes:
                note += f", as far as {reserve} go"
        return note

    def _prepare(self) -> None:
        before_bytes = self._free_bytes() if self._reserve_bytes else 0
        self.plans.prepare(self._waiting.popleft())
        if self._reserve_bytes:
            self._taken_bytes += max(0, before_bytes - self._free_bytes())
            if self._taken_bytes >= self._reserve_bytes:
                self._waiting.clear()

    def _free_bytes(self) -> int:
        self._device.synchronize()
        return self._device.memory().free_bytes
