"""The watermark: colours are the same in both forms, fair, and found again in what was sampled with them."""

from __future__ import annotations

import math
import random

import pytest
import torch

from tests.support.sampling import Row, make_inputs
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling.params import SamplingParams
from tgi_core.sampling.rules import watermark as rule
from tgi_core.sampling.watermark import colour_bits, detect, is_green

MASK = 0xFFFFFFFF
V = 1000


def test_device_and_plain_form_agree() -> None:
    previous = [0, 1, 77, 49151, 262143, 2**31 - 1]
    tokens = [0, 1, 2, 1000, 262143]
    bits = rule.colour_bits(torch.tensor(previous, dtype=torch.int32), torch.tensor(tokens, dtype=torch.int32))
    for row, before in zip(bits.tolist(), previous, strict=True):
        assert [value & MASK for value in row] == [colour_bits(before, token) for token in tokens]


@pytest.mark.parametrize("gamma", [0.1, 0.25, 0.5, 0.9])
def test_the_share_of_green_tokens_is_gamma(gamma: float) -> None:
    """Over the vocabulary after one token, and of one token after many; five deviations wide."""
    size = 20_000
    allowed = 5 * math.sqrt(gamma * (1 - gamma) / size)
    assert abs(sum(is_green(7, token, gamma) for token in range(size)) / size - gamma) < allowed
    assert abs(sum(is_green(before, 7, gamma) for before in range(size)) / size - gamma) < allowed


def test_the_extreme_shares() -> None:
    assert not any(is_green(before, 5, 0.0) for before in range(1000))
    assert all(is_green(before, 5, 1.0) for before in range(1000))


def sampled_text(delta: float, gamma: float, length: int) -> list[int]:
    """Tokens drawn from random logits, one after the other."""
    generator = torch.Generator().manual_seed(3)
    params = SamplingParams(do_sample=True, watermark_delta=delta, watermark_gamma=gamma, seed=5)
    tokens = [1]
    for _ in range(length):
        logits = torch.randn(1, V, generator=generator)
        inputs = make_inputs([Row(params, tokens)], logits)
        tokens += ReferenceKernels().sample(logits, inputs).ids_B.tolist()
    return tokens


@pytest.mark.parametrize("gamma", [0.25, 0.5])
def test_a_watermark_is_detected_with_its_own_gamma_alone(gamma: float) -> None:
    marked = detect(sampled_text(2.0, gamma, 100), gamma)
    assert marked.num_scored > 90
    assert marked.z_score > 5
    assert abs(detect(sampled_text(0.0, gamma, 100), gamma).z_score) < 4


def test_text_without_a_watermark_scores_as_chance_would() -> None:
    pick = random.Random(0)
    scores = [detect([pick.randrange(V) for _ in range(200)], 0.5).z_score for _ in range(100)]
    assert abs(sum(scores) / 100) < 0.5
    assert 0.7 < math.sqrt(sum(score * score for score in scores) / 100) < 1.3


def test_repetitions_count_once() -> None:
    once = detect([1, 2, 3, 1], 0.5)
    assert detect([1, 2, 3] * 50 + [1], 0.5) == once
    assert once.num_scored == 3


@pytest.mark.parametrize(("tokens", "gamma"), [([], 0.5), ([1], 0.5), ([1, 2], 0.0), ([1, 2], 1.0)])
def test_what_cannot_be_scored(tokens: list[int], gamma: float) -> None:
    with pytest.raises(ValueError, match="at least two tokens"):
        detect(tokens, gamma)
