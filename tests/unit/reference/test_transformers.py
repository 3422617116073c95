"""Warpers and the repetition penalty against transformers' processors of the same names, in float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor
from transformers.generation import logits_process as theirs

from tests.support.sampling import Row, make_inputs
from tgi_core.reference import sampling
from tgi_core.sampling.params import SamplingParams, Tier

INF = float("inf")
V = 400
TOKENS = [7, 8, 7, 300, 12, 7]

NAMES = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p", "typical_p")

Processor = Callable[[Tensor, Tensor], Tensor]


def processors(params: SamplingParams) -> list[Processor]:
    """transformers' own, in its order."""
    found: list[Processor] = []
    if params.repetition_penalty != 1:
        found.append(theirs.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.temperature != 1:
        found.append(theirs.TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        found.append(theirs.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        found.append(theirs.TopPLogitsWarper(params.top_p))
    if params.min_p:
        found.append(theirs.MinPLogitsWarper(params.min_p))
    if params.typical_p < 1:
        found.append(theirs.TypicalLogitsWarper(params.typical_p))
    return found


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.9),
        SamplingParams(top_k=1),
        SamplingParams(top_k=50),
        SamplingParams(top_k=5000),
        SamplingParams(top_p=0.3),
        SamplingParams(top_p=0.97),
        SamplingParams(min_p=0.1),
        SamplingParams(min_p=0.9),
        SamplingParams(typical_p=0.2),
        SamplingParams(typical_p=0.95),
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(repetition_penalty=0.6),
        SamplingParams(repetition_penalty=1.2, temperature=1.4, top_k=60, top_p=0.9, min_p=0.01, typical_p=0.9),
        SamplingParams(temperature=0.6, top_p=0.95, min_p=0.05),
    ],
    ids=lambda params: ", ".join(f"{name} {getattr(params, name)}" for name in NAMES),
)
def test_scores_equal_theirs(params: SamplingParams) -> None:
    row = Row(replace(params, do_sample=True), TOKENS, 2)
    for seed in range(5):
        logits_1V = torch.randn(1, V, generator=torch.Generator().manual_seed(seed)) * 3
        expected_1V = logits_1V.clone()
        for process in processors(params):
            expected_1V = process(torch.tensor([TOKENS]), expected_1V)
        inputs = make_inputs([row], logits_1V, tier=Tier.FULL)
        scores_1V = sampling.warp(sampling.apply_rules(logits_1V.clone(), inputs), inputs)
        assert torch.equal(scores_1V > -INF, expected_1V > -INF)
        torch.testing.assert_close(scores_1V.log_softmax(-1), expected_1V.log_softmax(-1), rtol=1e-5, atol=1e-5)
