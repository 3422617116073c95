"""Encoder-decoders give transformers' greedy tokens, however their requests are batched and placed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.encoder_decoders import CONFIGS, PAD, assert_greedy, generate, make_inputs, make_model
from tests.support.encoder_decoders import reply_under_pressure as reply
from tests.support.shards import KERNELS
from tgi_core.model_folder import ModelFolder


def _pairs() -> list[object]:
    """Each variant with one of the kernels by turns; with the other it is slow."""
    return [
        pytest.param(variant, kernels, marks=[] if (index + turn) % 2 else [pytest.mark.slow])
        for index, variant in enumerate(CONFIGS)
        for turn, kernels in enumerate(KERNELS)
    ]


@pytest.mark.parametrize(("variant", "kernels"), _pairs())
def test_tokens_and_logits_equal_transformers(variant: str, kernels: str, tmp_path: Path) -> None:
    model = make_model(variant, tmp_path)
    folder = ModelFolder(tmp_path)
    decoder_prompt, suppressed = list(folder.decoder_prompt), list(folder.suppressed_token_ids)
    assert suppressed == ([PAD] if variant == "marian" else [])
    replies = reply(tmp_path, KERNELS[kernels](), make_inputs(), decoder_prompt)
    assert_greedy(model, replies, decoder_prompt, suppressed)
    for encoder_ids, token_ids, _ in replies[1:3]:
        generated = generate(model, encoder_ids)
        # A forced token counts as a new one there.
        assert len(generated) >= len(token_ids)
        assert [*decoder_prompt, *token_ids][: len(generated)] == generated


def test_recomputed_output_is_cut_into_chunks(tmp_path: Path) -> None:
    """Steps are so small that what a preempted request has to compute again takes several."""
    model = make_model("t5", tmp_path)
    inputs = [ids[:8] for ids in make_inputs()]
    replies = reply(tmp_path, KERNELS["cpu"](), inputs, [5], max_step_tokens=8, kv_cache_tokens=112)
    assert_greedy(model, replies, [5], [])
