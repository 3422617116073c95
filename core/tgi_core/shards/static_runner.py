"""Runs the pieces of static-shaped work of one shard, each compiled once for each shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import AppendedBlocks, CompiledStep, Device, DeviceState, Ladder, NewSlot
from tgi_core.sampling.params import Tier
from tgi_core.shards.buckets import ForwardShape, sizes, smallest_at_least
from tgi_core.shards.host_tables import HostBlockTables
from tgi_core.shards.static_steps import Forward, Sample, Score, StaticModel, enter, pack_slot
from tgi_core.shards.transfer import upload

_ENTRY_LENGTHS = Ladder(smallest=64, growth=4)
"""Lengths at which requests enter the tables."""


class _Key(NamedTuple):
    """What compiled work is known by: its name, its shape, and a tier where it samples."""

    work: str
    shape: tuple[int, ...]
    tier: Tier | None = None


class StaticRunner:
    """The device state, and the work on it.

    Args:
        device: compiles and runs.
        model: what the work needs beside the state.
        state: tables and caches; belongs to this object from now on.
        columns: blocks that a slot may have.
    """

    def __init__(self, device: Device, model: StaticModel, state: DeviceState, columns: int) -> None:
        self._device = device
        self._model = model
        self._state = state
        self._scratch_slot = len(state.lengths_S) - 1
        self._blocks = HostBlockTables(model.scratch_blocks, self._scratch_slot, columns)
        self._all_allowed = torch.full((-(-model.vocab_size // 32),), -1, dtype=torch.int32)
        longest = state.tokens_SL.shape[1]
        self._entry_lengths = sizes(_ENTRY_LENGTHS, longest)
        self._compiled: dict[_Key, CompiledStep] = {}
        self._is_preparing = False

    # -- compiling ----------------------------------------------------------------------------------------------------

    def prepare_entries(self) -> None:
        """Compile what brings requests into the tables; afterwards the last slot holds nothing that counts."""
        self._is_preparing = True
        wanted = self._model.slots.rules.demand_all()
        for length in self._entry_lengths:
            self.enter(NewSlot(self._scratch_slot - 1, [0] * length, length, wanted))
        self._is_preparing = False

    def prepare(self, shape: ForwardShape) -> None:
        """Compile a forward and what may follow it. Each runs once, on the scratch slot."""
        self._is_preparing = True
        scratch = [self._scratch_slot] * shape.rows
        hidden_BE, hidden_TE = self.forward(shape, scratch, [0] * shape.rows, [1] * shape.rows)
        self.score(shape, hidden_TE, row=0, slot=self._scratch_slot, start=0)
        for tier in Tier:
            self.sample(hidden_BE, scratch, scratch, tier)
        self._is_preparing = False

    def _run(self, key: _Key, work: CompiledStep, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        on_device = tuple(upload(tensor, self._device.torch_device) if tensor.is_cpu else tensor for tensor in inputs)
        compiled = self._compiled.get(key)
        if compiled is None:
            assert self._is_preparing, f"a step needs {key}, which was not prepared"
            compiled = self._compiled[key] = self._device.compile(work, self._state, on_device)
        self._state, outputs = compiled(self._state, on_device)
        return outputs

    # -- running ------------------------------------------------------------------------------------------------------

    def append_blocks(self, appended: Sequence[AppendedBlocks]) -> None:
        """Blocks that slots were given."""
        self._blocks.append(appended)

    def enter(self, new: NewSlot) -> None:
        """Bring a request into the tables."""
        self._model.slots.enter(new)
        length = smallest_at_least(self._entry_lengths, len(new.token_ids))
        self._run(_Key("enter", (length,)), enter, pack_slot(new, self._model.slots, length))

    def forward(
        self, shape: ForwardShape, slots: Sequence[int], starts: Sequence[int], q_lens: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Compute tokens of at most ``shape.rows`` rows.

        Returns hidden states [B, E] of each row's last token, and [B * Q, E] of all; B and Q are the shape's.
        """
        padding = shape.rows - len(slots)
        slots = [*slots, *[self._scratch_slot] * padding]
        rows_3B = torch.tensor([slots, [*starts, *[0] * padding], [*q_lens, *[1] * padding]])
        inputs = (rows_3B, *self._blocks.rows(slots, shape.columns))
        hidden_BE, hidden_TE = self._run(_Key("forward", shape), Forward(self._model, shape.q_len), inputs)
        return hidden_BE, hidden_TE

    def sample(
        self,
        hidden_BE: Tensor,
        slots: Sequence[int],
        targets: Sequence[int],
        tier: Tier,
        masks: dict[int, Tensor] | None = None,
    ) -> tuple[Tensor, ...]:
        """A token for each row; see ``Sample`` for what comes back.

        Args:
            hidden_BE: of the rows, padded.
            slots: whose parameters and tokens count; rows beyond them are padding.
            targets: whose tables take the token: the scratch slot where none does.
            tier: the sampling work.
            masks: for some rows their token mask, int32 words on the host.
        """
        padding = [self._scratch_slot] * (len(hidden_BE) - len(slots))
        slots_2B = torch.tensor([[*slots, *padding], [*targets, *padding]])
        masks_BW = self._all_allowed.repeat(len(hidden_BE), 1)
        for row, words_W in (masks or {}).items():
            masks_BW[row] = words_W
        key = _Key("sample", (len(hidden_BE),), tier)
        return self._run(key, Sample(self._model, tier), (hidden_BE, slots_2B, masks_BW))

    def score(self, shape: ForwardShape, hidden_TE: Tensor, *, row: int, slot: int, start: int) -> Tensor:
        """Log-probabilities of the tokens after those that a row of a forward has computed, from ``start`` on: [Q]."""
        inputs = (hidden_TE, torch.tensor([row, slot, start]))
        return self._run(_Key("score", shape[:2]), Score(self._model, shape.q_len), inputs)[0]

    @property
    def scratch_slot(self) -> int:
        """The slot that padding names."""
        return self._scratch_slot
