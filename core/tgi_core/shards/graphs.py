"""Steps of decodes recorded once and replayed: one launch for gathering, forward, sampling and the tables.

Steps are padded to the next recorded number of rows. A padding row is the scratch slot, which has one token and whose
keys go to the scratch block; nothing reads what it computes. Where sampling cannot be recorded, because it waits for
the host or looks at values, the step is recorded up to the hidden states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import Device, DeviceGraph, StepPlan
from tgi_core.sampling.params import Tier
from tgi_core.transfer import download, stage

_MAX_ROWS = 512
"""Larger steps keep the device busy for longer than their launches take."""

Decode = Callable[[Tensor, Tier], tuple[Tensor, Tensor]]
"""Computes one token for each slot: (slots int64 [B], tier) -> (ids int64 [B], log-probabilities float32 [B])."""

DecodeHidden = Callable[[Tensor], Tensor]
"""The same up to the head: slots int64 [B] -> hidden states [B, E]."""


class Decoded(NamedTuple):
    """A replayed step's tokens, on their way to the host: ids int64 and log-probabilities float32, one a row."""

    ids_B: Tensor
    logprobs_B: Tensor


class _Recorded(NamedTuple):
    """A graph and its output: int32 [3 * rows], the ids' words and then the bits of the log-probabilities."""

    graph: DeviceGraph
    packed_X: Tensor


class DecodeGraphs:
    """The recorded steps of one shard. A few sizes are recorded at once, ``record_next`` adds the others.

    Args:
        device: records and replays.
        decode: what to record; launches only, and nothing that depends on values on the device.
        decode_hidden: the same without head, sampling and tables.
        hidden_E: a row of hidden states, for their size and type.
        tiers: sampling tiers that can be recorded.
        max_slots: rows of the largest step; also the number of the scratch slot.
        only_largest: record no other number of rows, to measure its memory.
    """

    def __init__(
        self,
        device: Device,
        decode: Decode,
        decode_hidden: DecodeHidden,
        *,
        hidden_E: Tensor,
        tiers: Iterable[Tier],
        max_slots: int,
        only_largest: bool = False,
    ) -> None:
        self._device = device
        self._decode = decode
        self._decode_hidden = decode_hidden
        self._scratch_slot = max_slots
        sizes = graph_sizes(min(max_slots, _MAX_ROWS))
        largest = sizes[-1]
        self._slots_X = torch.full((largest,), max_slots, dtype=torch.int64, device=hidden_E.device)
        self._slots: list[int] = []
        """What ``_slots_X`` holds: most steps have the rows of the one before."""
        self._hidden_XE = torch.empty((largest, len(hidden_E)), dtype=hidden_E.dtype, device=hidden_E.device)
        self._tiers = tuple(tiers)
        self._whole: dict[tuple[Tier, int], _Recorded] = {}
        self._to_hidden: dict[int, DeviceGraph] = {}
        self._sizes: list[int] = []
        """Those recorded for every tier, ascending."""
        # The largest first, since all share its memory; then what serving starts with.
        first = [size for size in reversed(sizes) if size == largest or size & (size - 1) == 0]
        for size in first[:1] if only_largest else first:
            self._record(size)
        rest = [size for size in reversed(sizes) if size not in self._sizes]
        self._waiting = deque([] if only_largest else rest)

    def record_next(self) -> bool:
        """Record one more size; whether more are left."""
        if self._waiting:
            self._record(self._waiting.popleft())
        return bool(self._waiting)

    def stop_recording(self) -> None:
        """Make do with the sizes there are."""
        self._waiting.clear()

    def takes(self, plan: StepPlan) -> bool:
        """Whether the plan's step can be replayed, at least up to the hidden states."""
        rows = len(plan.slots)
        return plan.num_decodes == rows and rows <= self._sizes[-1]

    def samples(self, plan: StepPlan) -> bool:
        """Whether the recorded step ends in tokens."""
        return not plan.late and plan.tier in self._tiers

    def replay(self, plan: StepPlan) -> Decoded:
        """Launch the plan's whole step; its changes to the tables must have been launched before."""
        rows, size = len(plan.slots), self._set_slots(plan.slots)
        recorded = self._whole[plan.tier, size]
        recorded.graph.replay()
        host_X = download(recorded.packed_X)
        ids_X, logprobs_X = host_X[: 2 * size].view(torch.int64), host_X[2 * size :].view(torch.float32)
        return Decoded(ids_X[:rows], logprobs_X[:rows])

    def replay_hidden(self, plan: StepPlan) -> tuple[Tensor, Tensor]:
        """Launch the plan's step up to the hidden states [B, E]; returns them and the slots, both until the next."""
        rows, size = len(plan.slots), self._set_slots(plan.slots)
        self._to_hidden[size].replay()
        return self._hidden_XE[:rows], self._slots_X[:rows]

    def _set_slots(self, slots: list[int]) -> int:
        """Tell the device which rows the step has; returns the number it is padded to."""
        size = next(size for size in self._sizes if size >= len(slots))
        padded = slots + [self._scratch_slot] * (size - len(slots))
        if padded != self._slots:
            self._slots = padded
            self._slots_X[:size].copy_(stage(torch.tensor(padded), self._slots_X.device), non_blocking=True)
        return size

    def _record(self, size: int) -> None:
        slots_B = self._slots_X[:size]
        # Recording runs the step, on scratch rows: tables stay as they are.
        slots_B.fill_(self._scratch_slot)
        self._slots = []

        def to_hidden() -> None:
            self._hidden_XE[:size].copy_(self._decode_hidden(slots_B))

        self._to_hidden[size] = self._device.capture(to_hidden)
        for tier in self._tiers:
            self._whole[tier, size] = self._record_whole(tier, slots_B)
        self._sizes = sorted((*self._sizes, size))

    def _record_whole(self, tier: Tier, slots_B: Tensor) -> _Recorded:
        packed_X = torch.empty(3 * len(slots_B), dtype=torch.int32, device=slots_B.device)

        def work() -> None:
            ids_B, logprobs_B = self._decode(slots_B, tier)
            torch.cat((ids_B.view(torch.int32), logprobs_B.view(torch.int32)), out=packed_X)

        return _Recorded(self._device.capture(work), packed_X)


def graph_sizes(max_rows: int) -> list[int]:
    """Numbers of rows to record, up to ``max_rows``: close enough that padding costs little."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, max_rows + 1, 16)]
    return [*(size for size in sizes if size < max_rows), max_rows]
