"""Which shapes of a bucketed shard are compiled, and when: the most useful first, as far as memory for them goes."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

import torch

from tgi_core.contract import Device
from tgi_core.shards.buckets import COVER_SHAPES, ForwardShape
from tgi_core.shards.static_plans import PlanRunner

_LOG = logging.getLogger(__name__)

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
        """Compile one more, if one waits that may be; whether another one does.

        One that finds no memory on the device is left out, and so are those that would need as much.
        """
        if self._waiting:
            shape = self._waiting[0]
            try:
                self._prepare()
            except torch.OutOfMemoryError as error:
                # Steps have the shapes that are ready; an engine that was started anew would come to the same point.
                _LOG.warning("The device has no memory for a shape of %s, so steps take others: %s", shape, error)
                self._waiting = deque(other for other in self._waiting if not other.covers(shape))
        return bool(self._waiting)

    @property
    def note(self) -> str:
        """What a user should know when serving starts."""
        ready, waiting = len(self.plans.ready), len(self._waiting)
        note = f"{self._num_shapes} shapes of a step, of which {ready} are ready when serving starts"
        reserve = f"{self._reserve_bytes / 2**20:,.1f} MiB of memory for compiled shapes"
        if ready + waiting < self._num_shapes:
            is_used_up = 0 < self._reserve_bytes <= self._taken_bytes
            reason = f"these use up {reserve}" if is_used_up else "the device has no memory for them"
            return f"{note}; the others are left out, since {reason}"
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
