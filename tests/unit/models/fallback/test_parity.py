"""Architectures without a spec of ours: transformers' greedy tokens, with chunks, shared prefixes and preemptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.greedy import assert_greedy, make_prompts, reply_under_pressure
from tests.support.other_models import VOCAB, make_other, other_types, runnable_types
from tests.support.shards import KERNELS
from tgi_core.models.choose import choose_model

_TYPES = runnable_types()


def test_there_are_enough() -> None:
    assert len(other_types()) >= 15


@pytest.mark.parametrize("model_type", _TYPES)
def test_tokens_and_logits_equal_transformers(model_type: str, tmp_path: Path) -> None:
    model = make_other(model_type, tmp_path)
    assert choose_model(tmp_path).path == f"transformers' `{type(model).__name__}` over paged attention"
    kernels = list(KERNELS.values())[_TYPES.index(model_type) % 2]()
    replies = reply_under_pressure(tmp_path, kernels, make_prompts(VOCAB))
    assert_greedy(replies, lambda ids_1T: model(ids_1T, use_cache=False).logits)
