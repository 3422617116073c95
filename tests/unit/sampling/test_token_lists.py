"""Allowed tokens and bad words, by hand and through a shard."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.support.driver import Driver, Generation
from tests.support.sampling import Row, make_inputs
from tests.support.shards import start_shard
from tests.support.tiny_models import make_model
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling.params import SamplingParams
from tgi_core.sampling.rules.bad_words import BadWords

INF = float("inf")


def banned(token_ids: list[int], *bad_words: tuple[int, ...], prompt_len: int = 1) -> list[int]:
    """The tokens that may not follow."""
    logits_BV = torch.zeros(1, 10)
    rows = [Row(SamplingParams(bad_words=bad_words), token_ids, prompt_len)]
    rule_rows = make_inputs(rows, logits_BV).rule_rows
    assert rule_rows is not None
    (result_V,) = BadWords().apply(logits_BV, rule_rows)
    return (result_V == -INF).nonzero().flatten().tolist()


def test_the_last_token_is_forbidden_where_the_others_stand_in_front() -> None:
    assert banned([1], (3,)) == [3]
    assert banned([1, 2], (2, 3), (5, 3), (2, 4)) == [3, 4]
    assert banned([1, 2, 3], (2, 3, 4), (1, 3, 5)) == [4]
    assert banned([1, 2, 3], (2, 4)) == []


def test_the_prompt_does_not_count() -> None:
    assert banned([1, 2], (2, 3), (1, 2, 4), prompt_len=2) == []
    assert banned([1, 2], (1, 2, 4), prompt_len=1) == []


def test_when_everything_is_forbidden_everything_stays() -> None:
    assert banned([1], *((token,) for token in range(10))) == []


def test_a_shard_keeps_to_them(tmp_path: Path) -> None:
    make_model("llama", tmp_path / "model")
    shard, budget = start_shard(tmp_path / "model", ReferenceKernels())
    free = Generation([1, 2, 3], 6, SamplingParams())
    Driver(shard, budget).run([free])
    first, second = free.token_ids[:2]
    samplings = [
        SamplingParams(allowed_token_ids=(4, 9)),
        SamplingParams(bad_words=((first,),)),
        SamplingParams(bad_words=((first, second),)),
        SamplingParams(bad_words=((second, first),)) if first != second else SamplingParams(),
    ]
    few, other, later, same = generations = [Generation([1, 2, 3], 6, sampling) for sampling in samplings]
    Driver(shard, budget).run(generations)
    shard.close()
    assert set(few.token_ids) <= {4, 9}
    assert first not in other.token_ids
    assert later.token_ids[0] == first
    assert later.token_ids[1] != second
    assert same.token_ids[:2] == [first, second]
