"""A plan's changes to the slot tables."""

from __future__ import annotations

import torch

from tgi_core.contract import AppendedBlocks, CopiedBlock, DeviceState, NewSlot, StepPlan
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling.params import SamplingParams
from tgi_core.shards.tables import apply_plan, make_state


def state_of(groups: int = 2) -> DeviceState:
    caches = [torch.arange(6.0).view(6, 1, 1, 1, 1).expand(6, 2, 2, 1, 1).clone() for _ in range(3)]
    return make_state(max_slots=3, max_total_tokens=8, blocks_per_slot=4, num_groups=groups, caches=caches)


def apply(state: DeviceState, **changes: object) -> None:
    plan = StepPlan(step=1, slots=[], epochs=[], q_lens=[], kv_lens=[], samples=[], num_decodes=0, **changes)  # type: ignore[arg-type]
    apply_plan(plan, state, [0, 1, 0], ReferenceKernels())


def test_new_slots() -> None:
    state = state_of()
    params = SamplingParams(
        do_sample=True, temperature=0.5, top_k=3, top_p=0.25, repetition_penalty=2.0, seed=2**64 - 2
    )
    apply(state, new_slots=[NewSlot(2, [4, 5, 6], 2, params), NewSlot(0, [9], 1, SamplingParams())])
    assert state.tokens_SL[2, :3].tolist() == [4, 5, 6]
    assert state.lengths_S.tolist() == [1, 0, 3, 0]
    assert state.prompt_lens_S.tolist() == [1, 0, 2, 0]
    assert state.temperature_S.tolist() == [1.0, 1.0, 0.5, 1.0]
    assert state.top_k_S.tolist() == [0, 0, 3, 0]
    assert state.top_p_S.tolist() == [1.0, 1.0, 0.25, 1.0]
    assert state.repetition_penalty_S.tolist() == [1.0, 1.0, 2.0, 1.0]
    assert state.do_sample_S.tolist() == [False, False, True, False]
    assert state.seed_S.tolist() == [0, 0, -2, 0]


def test_a_reused_slot_keeps_nothing() -> None:
    state = state_of()
    apply(state, new_slots=[NewSlot(1, [4, 5], 2, SamplingParams(do_sample=True, seed=3, top_k=5))])
    apply(state, new_slots=[NewSlot(1, [7], 1, SamplingParams())])
    columns = (state.lengths_S, state.seed_S, state.top_k_S, state.do_sample_S)
    assert [column[1].item() for column in columns] == [1, 0, 0, False]


def test_temperatures_that_float32_cannot_divide_by() -> None:
    state = state_of()
    rows = [SamplingParams(temperature=1e-300), SamplingParams(temperature=float("inf"))]
    apply(state, new_slots=[NewSlot(slot, [1], 1, row) for slot, row in enumerate(rows)])
    assert state.temperature_S[0].item() > 0
    assert torch.isfinite(state.temperature_S).all()


def test_appended_blocks() -> None:
    state = state_of()
    apply(
        state,
        appended_blocks=[
            AppendedBlocks(0, 1, 0, [5, 3]),
            AppendedBlocks(1, 1, 2, [4]),
            AppendedBlocks(0, 2, 1, [2, 1, 0]),
        ],
    )
    assert state.block_tables[0].tolist() == [[0, 0, 0, 0], [5, 3, 0, 0], [0, 2, 1, 0], [0, 0, 0, 0]]
    assert state.block_tables[1].tolist() == [[0, 0, 0, 0], [0, 0, 4, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_copied_blocks_reach_every_layer_of_their_group_only() -> None:
    state = state_of()
    apply(state, copied_blocks=[CopiedBlock(0, 4, 1), CopiedBlock(1, 5, 0)])
    assert state.kv[0].flatten(1)[:, 0].tolist() == [0, 4, 2, 3, 4, 5]
    assert state.kv[1].flatten(1)[:, 0].tolist() == [5, 1, 2, 3, 4, 5]
    assert state.kv[2].flatten(1)[:, 0].tolist() == [0, 4, 2, 3, 4, 5]
