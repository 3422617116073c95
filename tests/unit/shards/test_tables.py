"""A plan's changes to the slot tables."""

from __future__ import annotations

import torch

from tgi_core.contract import AppendedBlocks, CopiedBlock, DeviceState, NewSlot, StepPlan
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling.params import MAX_LOGIT_BIASES, SamplingParams
from tgi_core.sampling.rules import RuleSet
from tgi_core.sampling.rules.builtin import RULES
from tgi_core.shards.slots import SlotTable
from tgi_core.shards.tables import apply_plan, make_state

RULE_SET = RuleSet(RULES)


class Tables:
    """The device's tables and the host's part of them."""

    def __init__(self, groups: int = 2) -> None:
        caches = [torch.arange(6.0).view(6, 1, 1, 1, 1).expand(6, 2, 2, 1, 1).clone() for _ in range(3)]
        self.state: DeviceState = make_state(
            max_slots=3,
            max_total_tokens=8,
            blocks_per_slot=4,
            num_groups=groups,
            caches=caches,
            rules=RULE_SET,
            states=(),
            device=torch.device("cpu"),
        )
        self.slots = SlotTable(RULE_SET, 3, 100, torch.tensor([7]))

    def apply(self, **changes: object) -> None:
        plan = StepPlan(step=1, slots=[], epochs=[], q_lens=[], kv_lens=[], samples=[], num_decodes=0, **changes)  # type: ignore[arg-type]
        apply_plan(plan, self.state, self.slots, [0, 1, 0], ReferenceKernels())

    def rule_values(self, name: str) -> list[float]:
        return self.state.rule_values_SP[:, RULE_SET.columns[name]].tolist()


def test_new_slots() -> None:
    tables = Tables()
    state = tables.state
    params = SamplingParams(
        do_sample=True,
        temperature=0.5,
        top_k=3,
        top_p=0.25,
        repetition_penalty=2.0,
        seed=2**64 - 2,
        choice=4,
        raw_logprobs=True,
        frequency_penalty=-1.5,
    )
    tables.apply(new_slots=[NewSlot(2, [4, 5, 6], 2, params), NewSlot(0, [9], 1, SamplingParams())])
    assert state.tokens_SL[2, :3].tolist() == [4, 5, 6]
    assert state.lengths_S.tolist() == [1, 0, 3, 0]
    assert state.prompt_lens_S.tolist() == [1, 0, 2, 0]
    assert state.temperature_S.tolist() == [1.0, 1.0, 0.5, 1.0]
    assert state.top_k_S.tolist() == [0, 0, 3, 0]
    assert state.top_p_S.tolist() == [1.0, 1.0, 0.25, 1.0]
    assert tables.rule_values("repetition_penalty") == [1.0, 1.0, 2.0, 1.0]
    assert tables.rule_values("frequency_penalty") == [0.0, 0.0, -1.5, 0.0]
    assert state.choice_S.tolist() == [0, 0, 4, 0]
    assert state.raw_logprobs_S.tolist() == [False, False, True, False]
    assert state.do_sample_S.tolist() == [False, False, True, False]
    assert state.seed_S.tolist() == [0, 0, -2, 0]


def test_a_reused_slot_keeps_nothing() -> None:
    tables = Tables()
    state = tables.state
    tables.apply(new_slots=[NewSlot(1, [4, 5], 2, SamplingParams(do_sample=True, seed=3, top_k=5))])
    tables.apply(new_slots=[NewSlot(1, [7], 1, SamplingParams())])
    columns = (state.lengths_S, state.seed_S, state.top_k_S, state.do_sample_S)
    assert [column[1].item() for column in columns] == [1, 0, 0, False]


def test_a_logit_bias_leaves_with_its_request() -> None:
    tables = Tables()
    bias = {5: 1.5, 99: -2.0, 100: 3.0, -1: 3.0}
    tables.apply(new_slots=[NewSlot(1, [4], 1, SamplingParams(logit_bias=bias))])
    assert tables.state.bias_ids_SX[1, :3].tolist() == [5, 99, 0]
    assert tables.state.bias_values_SX[1, :3].tolist() == [1.5, -2.0, 0.0]
    tables.apply(new_slots=[NewSlot(1, [4], 1, SamplingParams()), NewSlot(0, [4], 1, SamplingParams())])
    assert not tables.state.bias_values_SX.any()
    # Minus zero, which changes no bit of what it is added to.
    assert tables.state.bias_values_SX.signbit().all()


def test_the_longest_logit_bias() -> None:
    tables = Tables()
    tables.slots = SlotTable(RULE_SET, 3, 5000, torch.empty(0, dtype=torch.int64))
    bias = {token: float(token) for token in range(MAX_LOGIT_BIASES)}
    tables.apply(new_slots=[NewSlot(0, [4], 1, SamplingParams(logit_bias=bias))])
    assert tables.state.bias_values_SX[0].tolist() == list(bias.values())


def test_allowed_tokens_and_bad_words_leave_with_their_request() -> None:
    tables = Tables()
    state = tables.state
    params = SamplingParams(allowed_token_ids=(5, 0, 100, -1), bad_words=((7, 8, 9), (3,), (4, 100), ()))
    tables.apply(new_slots=[NewSlot(1, [4], 1, params)])
    assert state.allowed_ids_SX[1, :3].tolist() == [5, 0, -1]
    assert state.bad_words_SWL[1, :3, -4:].tolist() == [[-1, 7, 8, 9], [-1, -1, -1, 3], [-1, -1, -1, -1]]
    tables.apply(new_slots=[NewSlot(1, [4], 1, SamplingParams()), NewSlot(0, [4], 1, SamplingParams())])
    assert (state.allowed_ids_SX == -1).all()
    assert (state.bad_words_SWL == -1).all()


def test_extreme_parameters_stay_within_float32() -> None:
    tables = Tables()
    tables.apply(new_slots=[NewSlot(0, [4], 1, SamplingParams(frequency_penalty=1e300, watermark_delta=-1e38))])
    assert tables.rule_values("frequency_penalty")[0] == torch.tensor(1e30).item()
    assert tables.rule_values("watermark_delta")[0] == torch.tensor(-1e30).item()


def test_temperatures_that_float32_cannot_divide_by() -> None:
    tables = Tables()
    state = tables.state
    rows = [SamplingParams(temperature=1e-300), SamplingParams(temperature=float("inf"))]
    tables.apply(new_slots=[NewSlot(slot, [1], 1, row) for slot, row in enumerate(rows)])
    assert state.temperature_S[0].item() > 0
    assert torch.isfinite(state.temperature_S).all()


def test_appended_blocks() -> None:
    tables = Tables()
    state = tables.state
    tables.apply(
        appended_blocks=[
            AppendedBlocks(0, 1, 0, [5, 3]),
            AppendedBlocks(1, 1, 2, [4]),
            AppendedBlocks(0, 2, 1, [2, 1, 0]),
        ],
    )
    assert state.block_tables[0].tolist() == [[0, 0, 0, 0], [5, 3, 0, 0], [0, 2, 1, 0], [0, 0, 0, 0]]
    assert state.block_tables[1].tolist() == [[0, 0, 0, 0], [0, 0, 4, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_copied_blocks_reach_every_layer_of_their_group_only() -> None:
    tables = Tables()
    state = tables.state
    tables.apply(copied_blocks=[CopiedBlock(0, 4, 1), CopiedBlock(1, 5, 0)])
    assert state.kv[0].flatten(1)[:, 0].tolist() == [0, 4, 2, 3, 4, 5]
    assert state.kv[1].flatten(1)[:, 0].tolist() == [5, 1, 2, 3, 4, 5]
    assert state.kv[2].flatten(1)[:, 0].tolist() == [0, 4, 2, 3, 4, 5]
