"""The encoder's part of a step: inputs of requests that enter, and what their rows see of them later."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec, DeviceState, StepPlan
from tgi_core.models.model import Encoder
from tgi_core.models.step import EncoderStep
from tgi_core.transfer import upload


class Encoding:
    """Runs a model's encoder, and knows how long the input of each slot is.

    Args:
        encoder: the model's.
        attention: one for each KV group; one of them is cross-attention, unless the model keeps inputs itself.
        max_slots: how many slots there are.
        block_size: tokens in a KV block.
    """

    def __init__(self, encoder: Encoder, attention: Sequence[AttentionSpec], max_slots: int, block_size: int) -> None:
        self._encoder = encoder
        # None for a model that keeps inputs itself.
        self._group = next((group for group, spec in enumerate(attention) if spec.cross), None)
        self._lens = [0] * max_slots
        self._block_size = block_size

    def enter(self, plan: StepPlan, state: DeviceState) -> None:
        """Compute the inputs of the plan's new slots, whose blocks are in the tables."""
        new_slots = [new for new in plan.new_slots if new.encoder_ids]
        if not new_slots:
            return
        lens = [len(new.encoder_ids) for new in new_slots]
        for new, length in zip(new_slots, lens, strict=True):
            self._lens[new.slot] = length
        device = state.tokens_SL.device
        columns = [
            (token_id, position, new.slot) for new in new_slots for position, token_id in enumerate(new.encoder_ids)
        ]
        ids_T, positions_T, slots_T = upload(torch.tensor(columns).t().contiguous(), device).unbind(0)
        slot_mapping_T = slots_T[:0]
        if self._group is not None:
            blocks_T = state.block_tables[self._group][slots_T, positions_T // self._block_size].long()
            slot_mapping_T = blocks_T * self._block_size + positions_T % self._block_size
        slots = [new.slot for new in new_slots]
        self._encoder(EncoderStep(ids_T.int(), positions_T, lens, slot_mapping_T, state.kv, slots))

    def add_cross(
        self, batches: Sequence[AttentionBatch], plan: StepPlan, state: DeviceState
    ) -> tuple[AttentionBatch, ...]:
        """The groups' batches, that of the cross group in its own form: each token is a row that sees a whole input."""
        return tuple(
            self._cross_batch(plan, state, group) if group == self._group else batch
            for group, batch in enumerate(batches)
        )

    def _cross_batch(self, plan: StepPlan, state: DeviceState, group: int) -> AttentionBatch:
        slots = [slot for slot, q_len in zip(plan.slots, plan.q_lens, strict=True) for _ in range(q_len)]
        lens = [self._lens[slot] for slot in slots]
        rows_2B = upload(torch.tensor([slots, lens]), state.tokens_SL.device)
        slots_B, lens_B = rows_2B.unbind(0)
        columns = -(-max(lens) // self._block_size)
        return AttentionBatch(
            q_lens=[1] * len(slots),
            kv_lens=lens,
            num_decodes=len(slots),
            q_starts_B=_counting(len(slots) + 1, state.tokens_SL),
            kv_lens_B=lens_B.int(),
            block_tables_BM=state.block_tables[group][:, :columns].index_select(0, slots_B),
            # Nothing is written: that happened when the slot was entered.
            slot_mapping_T=slots_B[:0],
            block_size=self._block_size,
            window=None,
        )


def _counting(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device)
