"""The slot tables on the device: making them, and bringing a plan's changes into them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_core.contract import AppendedBlocks, DeviceState, NewSlot, StepPlan
from tgi_core.contract.kernels import Kernels
from tgi_core.sampling.params import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, MAX_LOGIT_BIASES
from tgi_core.sampling.rules import RuleSet
from tgi_core.shards.slots import SlotTable
from tgi_core.transfer import upload

_SMALLEST_TEMPERATURE = 1e-30
_LARGEST_TEMPERATURE = 1e30

NO_BIAS = -0.0
"""The one number that changes no bit of whatever it is added to."""

NO_TOKEN = -1
"""An entry of a table of tokens that is not in use."""


def make_state(
    max_slots: int,
    max_total_tokens: int,
    blocks_per_slot: int,
    num_groups: int,
    caches: Sequence[Tensor],
    *,
    rules: RuleSet,
    states: Sequence[Tensor],
    device: torch.device,
) -> DeviceState:
    """Empty tables beside ``caches`` and ``states``, on ``device``, with one scratch row."""
    rows = max_slots + 1

    def column(dtype: torch.dtype) -> Tensor:
        return torch.zeros(rows, dtype=dtype, device=device)

    return DeviceState(
        tokens_SL=torch.zeros((rows, max_total_tokens), dtype=torch.int32, device=device),
        lengths_S=column(torch.int32),
        prompt_lens_S=column(torch.int32),
        temperature_S=column(torch.float32).fill_(1),
        top_p_S=column(torch.float32).fill_(1),
        top_k_S=column(torch.int32),
        do_sample_S=column(torch.bool),
        raw_logprobs_S=column(torch.bool),
        seed_S=column(torch.int64),
        choice_S=column(torch.int32),
        rule_values_SP=torch.tensor([rules.neutral], device=device).repeat(rows, 1),
        bias_ids_SX=torch.zeros((rows, MAX_LOGIT_BIASES), dtype=torch.int32, device=device),
        bias_values_SX=torch.full((rows, MAX_LOGIT_BIASES), NO_BIAS, device=device),
        allowed_ids_SX=torch.full((rows, MAX_LOGIT_BIASES), NO_TOKEN, dtype=torch.int32, device=device),
        bad_words_SWL=torch.full(
            (rows, MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), NO_TOKEN, dtype=torch.int32, device=device
        ),
        block_tables=tuple(
            torch.zeros((rows, blocks_per_slot), dtype=torch.int32, device=device) for _ in range(num_groups)
        ),
        kv=tuple(caches),
        states=tuple(states),
    )


def apply_plan(
    plan: StepPlan, state: DeviceState, slots: SlotTable, group_of_layer: Sequence[int], kernels: Kernels
) -> None:
    """Bring new slots, appended blocks and copied blocks into the tables; ``slots`` is the host's part of them."""
    if plan.new_slots:
        _enter_slots(plan.new_slots, state, slots)
    if plan.appended_blocks:
        _append_blocks(plan.appended_blocks, state)
    if plan.copied_blocks:
        _copy_blocks(plan, state, group_of_layer, kernels)


def slot_columns(new: NewSlot, rules: RuleSet) -> tuple[list[int], list[float]]:
    """What a request brings into the tables of one number a slot.

    Integers are the slot and then one for each of ``integer_tables``; floats are temperature, top-p and the rules'.
    """
    params = new.sampling
    integers = [
        new.slot,
        len(new.token_ids),
        new.prompt_len,
        params.top_k,
        params.do_sample,
        params.raw_logprobs,
        _signed(params.seed),
        params.choice,
    ]
    return integers, [_usable_temperature(params.temperature), params.top_p, *rules.values(params)]


def integer_tables(state: DeviceState) -> tuple[Tensor, ...]:
    """The tables of one integer a slot, in the order of ``slot_columns``."""
    return (
        state.lengths_S,
        state.prompt_lens_S,
        state.top_k_S,
        state.do_sample_S,
        state.raw_logprobs_S,
        state.seed_S,
        state.choice_S,
    )


def _enter_slots(new_slots: list[NewSlot], state: DeviceState, slots: SlotTable) -> None:
    device = state.tokens_SL.device
    stale = {new.slot: slots[new.slot] for new in new_slots}
    for new in new_slots:
        slots.enter(new)
        tokens = torch.tensor(new.token_ids, dtype=torch.int32)
        state.tokens_SL[new.slot, : len(new.token_ids)] = upload(tokens, device)
    columns = [slot_columns(new, slots.rules) for new in new_slots]
    slots_R, *integer_columns = upload(torch.tensor([integers for integers, _ in columns]).t().contiguous(), device)
    numbers_RF = upload(torch.tensor([numbers for _, numbers in columns], dtype=torch.float32), device)
    for table_S, column_R in zip(integer_tables(state), integer_columns, strict=True):
        table_S[slots_R] = column_R.to(table_S.dtype)
    state.temperature_S[slots_R] = numbers_RF[:, 0]
    state.top_p_S[slots_R] = numbers_RF[:, 1]
    state.rule_values_SP[slots_R] = numbers_RF[:, 2:]
    # The sparse tables are wide and hardly ever used: only rows that are, or were, in use are written.
    if biased := [slot for slot, old in stale.items() if old.biases or slots[slot].biases]:
        _set_biases(biased, state, slots)
    if limited := [slot for slot, old in stale.items() if old.allowed or slots[slot].allowed]:
        _set_allowed(limited, state, slots)
    if wordy := [slot for slot, old in stale.items() if old.bad_words or slots[slot].bad_words]:
        _set_bad_words(wordy, state, slots)


def _set_allowed(limited: list[int], state: DeviceState, slots: SlotTable) -> None:
    device = state.tokens_SL.device
    ids_RX = torch.full((len(limited), MAX_LOGIT_BIASES), NO_TOKEN, dtype=torch.int32)
    for row, slot in enumerate(limited):
        allowed = slots[slot].allowed[:MAX_LOGIT_BIASES]
        ids_RX[row, : len(allowed)] = torch.tensor(allowed, dtype=torch.int32)
    state.allowed_ids_SX[upload(torch.tensor(limited), device)] = upload(ids_RX, device)


def _set_bad_words(wordy: list[int], state: DeviceState, slots: SlotTable) -> None:
    device = state.tokens_SL.device
    words_RWL = torch.full((len(wordy), MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), NO_TOKEN, dtype=torch.int32)
    for row, slot in enumerate(wordy):
        for index, word in enumerate(slots[slot].bad_words[:MAX_BAD_WORDS]):
            words_RWL[row, index, -len(word) :] = torch.tensor(word, dtype=torch.int32)
    state.bad_words_SWL[upload(torch.tensor(wordy), device)] = upload(words_RWL, device)


def _set_biases(biased: list[int], state: DeviceState, slots: SlotTable) -> None:
    device = state.tokens_SL.device
    ids_RX = torch.zeros((len(biased), MAX_LOGIT_BIASES), dtype=torch.int32)
    values_RX = torch.full((len(biased), MAX_LOGIT_BIASES), NO_BIAS)
    for row, slot in enumerate(biased):
        biases = slots[slot].biases[:MAX_LOGIT_BIASES]
        if biases:
            token_ids, values = zip(*biases, strict=True)
            ids_RX[row, : len(biases)] = torch.tensor(token_ids)
            values_RX[row, : len(biases)] = torch.tensor(values)
    slots_R = upload(torch.tensor(biased), device)
    state.bias_ids_SX[slots_R] = upload(ids_RX, device)
    state.bias_values_SX[slots_R] = upload(values_RX, device)


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
