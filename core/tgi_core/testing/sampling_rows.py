"""Rows of a sampling step without a model, as a shard would make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import NewSlot, SampleInputs, StepPlan
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling.params import SamplingParams, Tier
from tgi_core.sampling.rules import LogitsRule, RowContext, RuleSet
from tgi_core.sampling.rules.builtin import RULES
from tgi_core.shards.batch import sample_inputs
from tgi_core.shards.slots import SlotTable
from tgi_core.shards.tables import apply_plan, make_state

EVERY_PARAMETER = (
    SamplingParams(),
    SamplingParams(do_sample=True, seed=1),
    SamplingParams(do_sample=True, temperature=0.6, top_k=20, top_p=0.9, seed=2**63 + 2),
    SamplingParams(do_sample=True, top_p=0.8, seed=3, choice=2),
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25, top_n=3),
    SamplingParams(do_sample=True, min_p=0.05, typical_p=0.9, seed=4, raw_logprobs=True, top_n=2),
    SamplingParams(do_sample=True, watermark_delta=2.0, relative_frequency_penalty=1.0, seed=5),
    SamplingParams(logit_bias={3: 4.0, 90: -100.0}, min_tokens=6),
    SamplingParams(allowed_token_ids=(7, 8, 9, 100), bad_words=((7, 8), (9,))),
)
"""Requests that together use every sampling parameter; 5 is an end of sequence where there is one."""


class Row(NamedTuple):
    """A row: its parameters, its tokens so far and how many of them are the prompt."""

    params: SamplingParams
    token_ids: Sequence[int] = (0,)
    prompt_len: int = 1

    def context(self, eos_token_ids: Sequence[int] = ()) -> RowContext:
        return RowContext(self.params, self.token_ids, self.prompt_len, eos_token_ids)


def make_inputs(
    rows: Sequence[Row],
    logits_BV: Tensor,
    *,
    tier: Tier | None = None,
    rules: Sequence[LogitsRule] = RULES,
    eos_token_ids: Sequence[int] = (),
    raw_logits_BV: Tensor | None = None,
) -> SampleInputs:
    """The rows' inputs on the logits' device, in slots out of order whose tables hold what others have left."""
    device = logits_BV.device
    count, longest = len(rows), max(len(row.token_ids) for row in rows)
    rule_set = RuleSet(rules)
    cache = torch.zeros(1, 1, 1, 1, 1, device=device)
    state = make_state(2 * count, longest + 3, 1, 1, [cache], rules=rule_set, states=(), device=device)
    eos_ids_E = torch.tensor(eos_token_ids, dtype=torch.int64, device=device)
    slots = SlotTable(rule_set, 2 * count, logits_BV.shape[-1], eos_ids_E)
    place = [2 * count - 1 - 2 * index for index in range(count)]
    left = SamplingParams(
        do_sample=True,
        logit_bias={1: 9.0, 0: -9.0},
        allowed_token_ids=(0, 1),
        bad_words=((1,), (0, 1)),
        repetition_penalty=3.0,
        watermark_delta=1.0,
        seed=1,
        choice=1,
    )
    stale = [NewSlot(slot, [1] * (longest + 3), 1, left) for slot in place]
    new = [
        NewSlot(slot, list(row.token_ids), row.prompt_len, row.params) for slot, row in zip(place, rows, strict=True)
    ]
    for new_slots in (stale, new):
        apply_plan(_entering(new_slots), state, slots, [0], ReferenceKernels())
    tier = max(row.params.tier for row in rows) if tier is None else tier
    inputs = sample_inputs(state, torch.tensor(place, device=device), tier)
    if tier is not Tier.FULL:
        return inputs
    return slots.full_inputs(inputs, state, place, longest, logits_BV if raw_logits_BV is None else raw_logits_BV)


def _entering(new_slots: list[NewSlot]) -> StepPlan:
    return StepPlan(step=0, slots=[], epochs=[], q_lens=[], kv_lens=[], samples=[], num_decodes=0, new_slots=new_slots)
