"""The null shard's tokens under masks, beside alternatives and with prompt log-probabilities."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tgi_core.contract import LateInputs, NewSlot, PromptLogprobs, ShardSpec, StepPlan, StepResult, TopTokens
from tgi_core.sampling.params import SamplingParams
from tgi_core.testing.null_backend import NULL_LOGPROB, NullBackend, allowed_token, null_token

VOCAB = 300


@pytest.mark.parametrize(
    ("wanted", "allowed", "expected"),
    [(7, {7, 9}, 7), (8, {7, 9}, 9), (10, {7, 9}, 7), (0, {63}, 63), (5, {64, 4}, 64)],
)
def test_allowed_token(wanted: int, allowed: set[int], expected: int) -> None:
    assert allowed_token(wanted, mask_of(allowed, 70), 70) == expected


@pytest.mark.parametrize("allowed", [set(), {70}])
def test_a_mask_without_a_token(allowed: set[int]) -> None:
    with pytest.raises(ValueError, match="no token"):
        allowed_token(3, mask_of(allowed, 96), 70)


def mask_of(token_ids: set[int], vocab_size: int) -> bytes:
    return sum(1 << token for token in token_ids).to_bytes(4 * -(-vocab_size // 32), "little")


def run(folder: Path, late: LateInputs | None) -> StepResult:
    (folder / "config.json").write_text(json.dumps({"vocab_size": VOCAB}))
    shard = NullBackend().create_shard(ShardSpec(model_dir=folder, dtype="float32"))
    shard.load(lambda done, total: None)
    plan = StepPlan(
        step=1,
        slots=[3, 0, 5],
        epochs=[1, 2, 3],
        q_lens=[4, 2, 2],
        kv_lens=[4, 5, 2],
        samples=[True, True, True],
        num_decodes=0,
        new_slots=[
            NewSlot(3, [1, 2, 3, 4], 4, SamplingParams()),
            NewSlot(0, [1, 2, 3, 9, 8], 5, SamplingParams(top_n=2)),
            NewSlot(5, [6, 7], 1, SamplingParams()),
        ],
        late=late is not None,
        prompt_logprobs=[1, 0],
    )
    ticket = shard.launch(plan)
    shard.sample(ticket, late)
    return shard.collect(ticket)


def test_alternatives_and_prompts(tmp_path: Path) -> None:
    result = run(tmp_path, None)
    token = null_token(8, 5, VOCAB)
    assert result.token_ids == [null_token(4, 4, VOCAB), token, null_token(6, 2, VOCAB)]
    assert result.tops == [None, TopTokens([token, token + 1], [NULL_LOGPROB, 2 * NULL_LOGPROB]), None]
    assert result.prompt_logprobs == [
        PromptLogprobs(0, 2, 4, [NULL_LOGPROB]),
        PromptLogprobs(3, 1, 1, [NULL_LOGPROB] * 3),
    ]


def test_masks_and_rows_that_sit_out(tmp_path: Path) -> None:
    late = LateInputs([2, 1], mask_of({17}, VOCAB) + mask_of({18}, VOCAB), [0])
    result = run(tmp_path, late)
    assert (result.slots, result.epochs, result.token_ids) == ([0, 5], [2, 3], [18, 17])
    assert len(result.logprobs) == len(result.tops) == 2
