"""Encoder-decoders with transformers' own cache: transformers' greedy tokens, with a queue and preemptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.encoder_decoders import START, assert_greedy, make_inputs, make_model, reply_under_pressure
from tests.support.own_cache_models import ENCODER_DECODERS
from tests.support.shards import WatchedReference, start_shard
from tgi_core.models.choose import choose_model


@pytest.mark.parametrize("model_type", ENCODER_DECODERS)
def test_tokens_and_logits_equal_transformers(model_type: str, tmp_path: Path) -> None:
    model = make_model(model_type, tmp_path, ENCODER_DECODERS)
    chosen = choose_model(tmp_path)
    assert chosen.path == f"transformers' `{type(model).__name__}` with its own attention and cache"
    assert "because it has an encoder" in chosen.reason
    replies = reply_under_pressure(tmp_path, WatchedReference(), make_inputs(), [START])
    assert_greedy(model, replies, [START], [])


def test_inputs_are_counted_as_memory(tmp_path: Path) -> None:
    make_model("plbart", tmp_path, ENCODER_DECODERS)
    shard, budget = start_shard(tmp_path, WatchedReference(), max_total_tokens=60)
    tokens, inputs = (group.group for group in budget.groups)
    # Keys and values of 2 layers with 64 features; of an input also its hidden states.
    assert tokens.bytes_per_block == 16 * 2 * 2 * 64 * 4
    assert inputs.bytes_per_block == 16 * (2 * 2 + 1) * 64 * 4
    assert inputs.cross
    assert not tokens.cross
    assert budget.max_encoder_tokens == 64
    shard.close()
