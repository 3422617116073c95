"""Every architecture gives transformers' greedy tokens, with chunks, shared prefixes and preemptions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from tests.support.architectures import CONFIGS, VOCAB, make_model, unavailable
from tests.support.greedy import NEW_TOKENS, assert_greedy, make_prompts, reply_under_pressure
from tests.support.shards import KERNELS


def _pairs() -> list[object]:
    """Each variant with one of the kernels by turns; with the other it is slow."""
    names = list(KERNELS)
    return [
        pytest.param(variant, kernels, marks=[] if (index + turn) % 2 else [pytest.mark.slow])
        for index, variant in enumerate(CONFIGS)
        for turn, kernels in enumerate(names)
    ]


@pytest.mark.parametrize(("variant", "kernels"), _pairs())
def test_tokens_and_logits_equal_transformers(variant: str, kernels: str, tmp_path: Path) -> None:
    if reason := unavailable(variant):
        pytest.skip(f"transformers {transformers.__version__}: {reason}")
    model = make_model(variant, tmp_path)
    replies = reply_under_pressure(tmp_path, KERNELS[kernels](), make_prompts(VOCAB))
    assert_greedy(replies, lambda ids_1T: model(ids_1T, use_cache=False).logits)
    prompt, token_ids, _ = replies[2]
    with torch.inference_mode():
        generated = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    assert generated[0, len(prompt) :].tolist() == token_ids
