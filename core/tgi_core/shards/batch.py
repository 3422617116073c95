"""A plan's rows as tensors: token ids, positions, attention batches, sampling inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, DeviceState, SampleInputs, StepPlan
from tgi_core.contract.states import StepRows
from tgi_core.sampling.params import Tier
from tgi_core.transfer import upload


class StepBatch(NamedTuple):
    """The rows of a step on the device.

    Attributes:
        ids_T: int32, the tokens to compute.
        positions_T: int64, their positions.
        rows: whose tokens they are.
        attention: one batch a KV group.
        sample_tokens_B: int64, index in T of the last token of each row that samples; None where that is all of T.
        sample_slots_B: int64, the slots of these rows.
    """

    ids_T: Tensor
    positions_T: Tensor
    rows: StepRows
    attention: tuple[AttentionBatch, ...]
    sample_tokens_B: Tensor | None
    sample_slots_B: Tensor


def make_batch(plan: StepPlan, state: DeviceState, windows: Sequence[int | None], block_size: int) -> StepBatch:
    """Gather what a step computes; the input ids come from the tables, where sampling has put them."""
    device = state.tokens_SL.device
    firsts = [kv_len - q_len for kv_len, q_len in zip(plan.kv_lens, plan.q_lens, strict=True)]
    rows_4B = upload(torch.tensor([plan.slots, plan.q_lens, plan.kv_lens, firsts]), device)
    slots_B, q_lens_B, kv_lens_B, firsts_B = rows_4B.unbind(0)
    num_rows, num_tokens = len(plan.slots), sum(plan.q_lens)
    q_starts_B = torch.zeros(num_rows + 1, dtype=torch.int64, device=device)
    torch.cumsum(q_lens_B, 0, out=q_starts_B[1:])
    if num_tokens == num_rows:
        slots_T, positions_T = slots_B, kv_lens_B - 1
    else:
        # Token t of row b has position t - q_start + (kv_len - q_len) = t + (kv_len - q_end).
        shifts_B = kv_lens_B - q_starts_B[1:]
        per_row_2B = torch.stack((slots_B, shifts_B))
        slots_T, shifts_T = per_row_2B.repeat_interleave(q_lens_B, dim=1, output_size=num_tokens).unbind(0)
        positions_T = torch.arange(num_tokens, device=device) + shifts_T
    block_columns_T = positions_T // block_size
    offsets_T = positions_T % block_size
    columns = -(-max(plan.kv_lens) // block_size)
    attention = []
    for table_SM, window in zip(state.block_tables, windows, strict=True):
        blocks_T = table_SM[slots_T, block_columns_T].long()
        attention.append(
            AttentionBatch(
                q_lens=plan.q_lens,
                kv_lens=plan.kv_lens,
                num_decodes=plan.num_decodes,
                q_starts_B=q_starts_B,
                kv_lens_B=kv_lens_B.int(),
                block_tables_BM=table_SM[:, :columns].index_select(0, slots_B),
                slot_mapping_T=blocks_T * block_size + offsets_T,
                block_size=block_size,
                window=window,
            )
        )
    if all(plan.samples) and num_tokens == num_rows:
        sample_tokens_B, sample_slots_B = None, slots_B
    else:
        rows = [row for row, samples in enumerate(plan.samples) if samples]
        rows_B = upload(torch.tensor(rows, dtype=torch.int64), device)
        sample_tokens_B = q_starts_B[rows_B + 1] - 1
        sample_slots_B = slots_B[rows_B]
    return StepBatch(
        ids_T=state.tokens_SL[slots_T, positions_T],
        positions_T=positions_T,
        rows=StepRows(slots_B, q_starts_B, firsts_B, plan.q_lens, plan.num_decodes, plan.slots),
        attention=tuple(attention),
        sample_tokens_B=sample_tokens_B,
        sample_slots_B=sample_slots_B,
    )


def sample_inputs(state: DeviceState, slots_B: Tensor, tier: Tier) -> SampleInputs:
    """The sampling parameters of the rows that sample, as the tables hold them now; of the full tier only these.

    The greedy tier reads no parameter: it gets the tables themselves, which costs no gathering.
    """
    if tier is Tier.GREEDY:
        return SampleInputs(
            slots_B=slots_B,
            positions_B=state.lengths_S,
            temperature_B=state.temperature_S,
            top_p_B=state.top_p_S,
            top_k_B=state.top_k_S,
            do_sample_B=state.do_sample_S,
            seed_B=state.seed_S,
            choice_B=state.choice_S,
            tier=tier,
        )
    return SampleInputs(
        slots_B=slots_B,
        positions_B=state.lengths_S[slots_B] - state.prompt_lens_S[slots_B],
        temperature_B=state.temperature_S[slots_B],
        top_p_B=state.top_p_S[slots_B],
        top_k_B=state.top_k_S[slots_B],
        do_sample_B=state.do_sample_S[slots_B],
        seed_B=state.seed_S[slots_B],
        choice_B=state.choice_S[slots_B],
        tier=tier,
    )
