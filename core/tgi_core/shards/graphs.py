"""Steps of decodes recorded once and replayed: one launch for gathering, forward, sampling and the tables.

Steps are padded to the next recorded number of rows. A padding row is the scratch slot, which has one token and whose
keys go to the scratch block; nothing reads what it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import Device, DeviceGraph, StepPlan
from tgi_core.sampling.params import Tier
from tgi_core.shards.transfer import download, upload

_MAX_ROWS = 512
"""Larger steps keep the device busy for longer than their launches take."""

Decode = Callable[[Tensor, Tier], tuple[Tensor, Tensor]]
"""Computes one token for each slot: (slots int64 [B], tier) -> (ids int64 [B], log-probabilities float32 [B])."""


class Decoded(NamedTuple):
    """A replayed step's tokens, on their way to the host: ids int64 and log-probabilities float32, one a row."""

    ids_B: Tensor
    logprobs_B: Tensor


class _Recorded(NamedTuple):
    """A graph and its output: int32 [3 * rows], the ids' words and then the bits of the log-probabilities."""

    graph: DeviceGraph
    packed_X: Tensor


class DecodeGraphs:
    """The recorded steps of one shard.

    Args:
        device: records and replays.
        decode: what to record; launches only, and nothing that depends on values on the device.
        tiers: sampling tiers to record.
        max_slots: rows of the largest step; also the number of the scratch slot.
        only_largest: record no other number of rows, to measure its memory.
    """

    def __init__(
        self, device: Device, decode: Decode, tiers: Iterable[Tier], max_slots: int, *, only_largest: bool = False
    ) -> None:
        self._scratch_slot = max_slots
        sizes = graph_sizes(min(max_slots, _MAX_ROWS))
        self._sizes = sizes[-1:] if only_largest else sizes
        self._slots_X = torch.full((self._sizes[-1],), max_slots, dtype=torch.int64, device=device.torch_device)
        self._graphs: dict[tuple[Tier, int], _Recorded] = {}
        for tier in tiers:
            for size in reversed(self._sizes):
                self._graphs[tier, size] = self._record(device, decode, tier, size)

    def takes(self, plan: StepPlan) -> bool:
        """Whether the plan's step can be replayed."""
        rows = len(plan.slots)
        return (
            plan.num_decodes == rows
            and rows <= self._sizes[-1]
            and not plan.late
            and (plan.tier, self._sizes[0]) in self._graphs
        )

    def replay(self, plan: StepPlan) -> Decoded:
        """Launch the plan's step; its changes to the tables must have been launched before."""
        rows = len(plan.slots)
        size = next(size for size in self._sizes if size >= rows)
        slots = plan.slots + [self._scratch_slot] * (size - rows)
        self._slots_X[:size].copy_(upload(torch.tensor(slots), self._slots_X.device), non_blocking=True)
        recorded = self._graphs[plan.tier, size]
        recorded.graph.replay()
        host_X = download(recorded.packed_X)
        ids_X, logprobs_X = host_X[: 2 * size].view(torch.int64), host_X[2 * size :].view(torch.float32)
        return Decoded(ids_X[:rows], logprobs_X[:rows])

    def _record(self, device: Device, decode: Decode, tier: Tier, size: int) -> _Recorded:
        packed_X = torch.empty(3 * size, dtype=torch.int32, device=self._slots_X.device)

        def work() -> None:
            ids_B, logprobs_B = decode(self._slots_X[:size], tier)
            torch.cat((ids_B.view(torch.int32), logprobs_B.view(torch.int32)), out=packed_X)

        return _Recorded(device.capture(work), packed_X)


def graph_sizes(max_rows: int) -> list[int]:
    """Numbers of rows to record, up to ``max_rows``: close enough that padding costs little."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, max_rows + 1, 16)]
    return [*(size for size in sizes if size < max_rows), max_rows]
