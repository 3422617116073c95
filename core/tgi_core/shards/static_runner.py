"""Runs the pieces of static-shaped work of one shard, each compiled once for each shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import AppendedBlocks, CompiledStep, Device, DeviceState, Ladder, NewSlot
from tgi_core.errors import LateCompileError
from tgi_core.sampling.params import Tier
from tgi_core.shards.buckets import ForwardShape, sizes, smallest_at_least
from tgi_core.shards.host_tables import HostBlockTables
from tgi_core.shards.seen_blocks import SeenBlocks
from tgi_core.shards.static_steps import Forward, Sample, Score, StaticModel, enter, pack_slot

_ENTRY_LENGTHS = Ladder(smallest=64, growth=4)
"""Lengths at which requests enter the tables."""


class _Key(NamedTuple):
    """What compiled work is known by: its name, its shape, and a tier where it samples."""

    work: str
    shape: tuple[int, ...]
    tier: Tier | None = None

    def __str__(self) -> str:
        """For people."""
        shape = str(self.shape) if isinstance(self.shape, ForwardShape) else " x ".join(map(str, self.shape))
        return f"{self.work} ({shape}{'' if self.tier is None else f', {self.tier.name.lower()}'})"


class StaticRunner:
    """The device state, and the work on it.

    Args:
        device: compiles and runs.
        model: what the work needs beside the state.
        state: tables and caches; belongs to this object from now on.
        columns: blocks that a slot may have.
        seen: which of them attention looks at.
        strict: a step that has something compiled fails.

    Attributes:
        late_compiles: programs that steps have had compiled.
    """

    def __init__(
        self,
        device: Device,
        model: StaticModel,
        state: DeviceState,
        columns: int,
        seen: SeenBlocks,
        *,
        strict: bool,
    ) -> None:
        self.late_compiles = 0
        self._device = device
        self._model = model
        self._state = state
        self._seen = seen
        self._strict = strict
        self._scratch_slot = len(state.lengths_S) - 1
        self._blocks = HostBlockTables(model.scratch_blocks, self._scratch_slot, columns)
        self._all_allowed = torch.full((-(-model.vocab_size // 32),), -1, dtype=torch.int32)
        longest = state.tokens_SL.shape[1]
        self._entry_lengths = sizes(_ENTRY_LENGTHS, longest)
        self._compiled: dict[_Key, CompiledStep] = {}
        self._is_preparing = False
        self._num_compiled = device.num_compiled

    # -- compiling ----------------------------------------------------------------------------------------------------

    def prepare_entries(self) -> None:
        """Compile what brings requests into the tables; afterwards the last slot holds nothing that counts."""
        wanted = self._model.slots.rules.demand_all()
        with self._preparing():
            for length in self._entry_lengths:
                self.enter(NewSlot(self._scratch_slot - 1, [0] * length, length, wanted))

    def prepare(self, shape: ForwardShape) -> None:
        """Compile a forward and what may follow it. Each runs once, on padding."""
        with self._preparing():
            hidden_BE, hidden_TE = self.forward(shape, (), (), ())
            self.score(shape, hidden_TE, row=0, slot=self._scratch_slot, start=0)
            for tier in Tier:
                self.sample(hidden_BE, (), (), tier)

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        self._is_preparing = True
        try:
            yield
        finally:
            self._is_preparing = False
            self._num_compiled = self._device.num_compiled

    def _run(self, key: _Key, work: CompiledStep, inputs: Sequence[Tensor], *on_device: Tensor) -> tuple[Tensor, ...]:
        """Run ``work`` on what lies on the device already and, after it, on inputs of the host."""
        all_inputs = (*on_device, *map(self._device.upload, inputs))
        compiled = self._compiled.get(key)
        if compiled is None:
            assert self._is_preparing, f"a step needs {key}, which was not prepared"
            compiled = self._compiled[key] = self._device.compile(work, self._state, all_inputs)
        self._state, outputs = compiled(self._state, all_inputs)
        if not self._is_preparing:
            self._count_late(key)
        return outputs

    def _count_late(self, key: _Key) -> None:
        """What was compiled since the last look was compiled for a step."""
        late = self._device.num_compiled - self._num_compiled
        self._num_compiled += late
        self.late_compiles += late
        if late and self._strict:
            raise LateCompileError(
                f"{late} programs were compiled for a step of {key}, though this shape had been prepared. Report it to "
                "the backend's authors; without --strict-shapes such a step waits for the compiler."
            )

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
        padded_slots = [*slots, *[self._scratch_slot] * padding]
        padded_starts = [*starts, *[0] * padding]
        inputs = [torch.tensor([padded_slots, padded_starts, [*q_lens, *[1] * padding]])]
        if shape.is_flat:
            inputs += self._blocks.column(padded_slots, [start // self._model.block_size for start in padded_starts])
            inputs += self._lists(shape, slots, [start + 1 for start in starts])
        else:
            inputs += self._blocks.rows(padded_slots, shape.blocks)
        hidden_BE, hidden_TE = self._run(_Key("forward", shape), Forward(self._model, shape.q_len), inputs)
        return hidden_BE, hidden_TE

    def _lists(self, shape: ForwardShape, slots: Sequence[int], kv_lens: Sequence[int]) -> list[Tensor]:
        """Of each KV group the blocks of a flat decode; rows that pad it have none."""
        lists = []
        for group in range(len(self._model.attention)):
            seen = [self._seen.of_decode(group, kv_len) for kv_len in kv_lens]
            length = self._seen.list_length(group, shape)
            lists.append(self._blocks.listed(group, slots, seen, length, owner=shape.rows))
        return lists

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
        return self._run(key, Sample(self._model, tier), (slots_2B, masks_BW), hidden_BE)

    def score(self, shape: ForwardShape, hidden_TE: Tensor, *, row: int, slot: int, start: int) -> Tensor:
        """Log-probabilities of the tokens after those that a row of a forward has computed, from ``start`` on: [Q]."""
        place_3 = torch.tensor([row, slot, start])
        return self._run(_Key("score", shape[:2]), Score(self._model, shape.q_len), (place_3,), hidden_TE)[0]

    @property
    def scratch_slot(self) -> int:
        """The slot that padding names."""
        return self._scratch_slot
