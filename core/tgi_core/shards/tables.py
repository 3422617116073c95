"""The slot tables on the device: making them, and bringing a plan's changes into them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_core.contract import AppendedBlocks, DeviceState, NewSlot, StepPlan
from tgi_core.contract.kernels import Kernels
from tgi_core.shards.transfer import upload

_SMALLEST_TEMPERATURE = 1e-30
_LARGEST_TEMPERATURE = 1e30


def make_state(
    max_slots: int, max_total_tokens: int, blocks_per_slot: int, num_groups: int, caches: Sequence[Tensor]
) -> DeviceState:
    """Empty tables beside ``caches``, on their device, with one scratch row."""
    device = caches[0].device
    rows = max_slots + 1

    def column(dtype: torch.dtype) -> Tensor:
        return torch.zeros(rows, dtype=dtype, device=device)

    return DeviceState(
        tokens_SL=torch.zeros((rows, max_total_tokens), dtype=torch.int32, device=device),
        lengths_S=column(torch.int32),
        prompt_lens_S=column(torch.int32),
        temperature_S=column(torch.float32).fill_(1),
        top_p_S=column(torch.float32).fill_(1),
        repetition_penalty_S=column(torch.float32).fill_(1),
        top_k_S=column(torch.int32),
        do_sample_S=column(torch.bool),
        seed_S=column(torch.int64),
        block_tables=tuple(
            torch.zeros((rows, blocks_per_slot), dtype=torch.int32, device=device) for _ in range(num_groups)
        ),
        kv=tuple(caches),
    )


def apply_plan(plan: StepPlan, state: DeviceState, group_of_layer: Sequence[int], kernels: Kernels) -> None:
    """Bring new slots, appended blocks and copied blocks into the tables."""
    if plan.new_slots:
        _enter_slots(plan.new_slots, state)
    if plan.appended_blocks:
        _append_blocks(plan.appended_blocks, state)
    if plan.copied_blocks:
        _copy_blocks(plan, state, group_of_layer, kernels)


def _enter_slots(new_slots: list[NewSlot], state: DeviceState) -> None:
    device = state.tokens_SL.device
    for new in new_slots:
        tokens = torch.tensor(new.token_ids, dtype=torch.int32)
        state.tokens_SL[new.slot, : len(new.token_ids)] = upload(tokens, device)
    slots = upload(torch.tensor([new.slot for new in new_slots]), device)
    sampling = [new.sampling for new in new_slots]
    columns: list[tuple[Tensor, list[int] | list[float] | list[bool]]] = [
        (state.lengths_S, [len(new.token_ids) for new in new_slots]),
        (state.prompt_lens_S, [new.prompt_len for new in new_slots]),
        (state.temperature_S, [_usable_temperature(params.temperature) for params in sampling]),
        (state.top_p_S, [params.top_p for params in sampling]),
        (state.repetition_penalty_S, [params.repetition_penalty for params in sampling]),
        (state.top_k_S, [params.top_k for params in sampling]),
        (state.do_sample_S, [params.do_sample for params in sampling]),
        (state.seed_S, [_signed(params.seed) for params in sampling]),
    ]
    for table_S, values in columns:
        table_S[slots] = upload(torch.tensor(values, dtype=table_S.dtype), device)


def _append_blocks(appended: list[AppendedBlocks], state: DeviceState) -> None:
    for group, table_SM in enumerate(state.block_tables):
        slots: list[int] = []
        columns: list[int] = []
        blocks: list[int] = []
        for entry in appended:
            if entry.group == group:
                slots += [entry.slot] * len(entry.block_ids)
                columns += range(entry.start, entry.start + len(entry.block_ids))
                blocks += entry.block_ids
        if blocks:
            index_3X = upload(torch.tensor([slots, columns, blocks]), table_SM.device)
            table_SM[index_3X[0], index_3X[1]] = index_3X[2].to(table_SM.dtype)


def _copy_blocks(plan: StepPlan, state: DeviceState, group_of_layer: Sequence[int], kernels: Kernels) -> None:
    for group in range(len(state.block_tables)):
        copies = [(copy.source, copy.target) for copy in plan.copied_blocks if copy.group == group]
        if copies:
            sources_R, targets_R = upload(torch.tensor(copies), state.tokens_SL.device).unbind(1)
            for layer_group, cache_NP2KD in zip(group_of_layer, state.kv, strict=True):
                if layer_group == group:
                    kernels.copy_blocks(cache_NP2KD, sources_R, targets_R)


def _usable_temperature(temperature: float) -> float:
    """Kept where float32 can divide by it: 0 and infinity would turn scores into NaN."""
    return min(max(temperature, _SMALLEST_TEMPERATURE), _LARGEST_TEMPERATURE)


def _signed(seed: int) -> int:
    """The bits of an unsigned 64-bit number as a signed one."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed
