"""The choice of tokens and token masks against the reference."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from tests.support.sampling import Row
from tests.support.sampling import make_inputs as inputs_of_rows
from tgi_core.contract import Sampled, SampleInputs
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling.params import SamplingParams, Tier
from tgi_core.sampling.rules import RuleSet
from tgi_core.sampling.rules.builtin import RULES
from tgi_core.testing.conformance.cases.sampling import WARPED
from tgi_triton import TritonKernels

REFERENCE = ReferenceKernels()
VOCAB = 5000

ROWS = [
    Row(replace(params, seed=(row * 0x9E3779B97F4A7C15) % 2**64), [row] * (9 + 1000 * row), 9)
    for row, params in enumerate(WARPED)
]


def make_logits(dtype: torch.dtype, rows: int) -> Tensor:
    return (torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)


def make_inputs(tier: Tier) -> SampleInputs:
    return inputs_of_rows(ROWS, torch.empty(len(ROWS), VOCAB), tier=tier)


def assert_same_choices(actual: Sampled, expected: Sampled) -> None:
    assert actual.ids_B.tolist() == expected.ids_B.tolist()
    assert actual.ids_B.dtype == torch.int64
    torch.testing.assert_close(actual.logprobs_B, expected.logprobs_B, rtol=1e-4, atol=1e-4)


def test_greedy(kernels: TritonKernels, dtype: torch.dtype) -> None:
    logits = make_logits(dtype, len(ROWS))
    inputs = make_inputs(Tier.GREEDY)
    for _ in range(2):
        assert_same_choices(kernels.sample(logits, inputs), REFERENCE.sample(logits, inputs))


def test_the_first_of_equal_scores_wins(kernels: TritonKernels) -> None:
    logits = torch.zeros(2, VOCAB)
    logits[1, [4100, 77, 3000]] = 5.0
    sampled = kernels.sample(logits, make_inputs(Tier.GREEDY))
    assert sampled.ids_B.tolist() == [0, 77]
    assert sampled.logprobs_B[0].item() == pytest.approx(-torch.tensor(float(VOCAB)).log().item())


@pytest.mark.parametrize("tier", [Tier.SAMPLED, Tier.FULL])
def test_sampled(kernels: TritonKernels, dtype: torch.dtype, tier: Tier) -> None:
    logits = make_logits(dtype, len(ROWS))
    assert_same_choices(kernels.sample(logits, make_inputs(tier)), REFERENCE.sample(logits, make_inputs(tier)))


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (0, 0.5), (4, 0.5), (40, 0.9)])
def test_cuts_among_equal_scores(kernels: TritonKernels, top_k: int, top_p: float) -> None:
    """Many tokens share a score at the cut; those with the smaller ids stay."""
    rows = len(ROWS)
    logits = torch.full((rows, 600), -9.0)
    logits[:, 100:110] = 2.0
    logits[:, 400:450] = 1.0
    logits[:, 7] = 3.0
    inputs = make_inputs(Tier.SAMPLED)._replace(
        do_sample_B=torch.ones(rows, dtype=torch.bool),
        temperature_B=torch.ones(rows),
        top_k_B=torch.full((rows,), top_k, dtype=torch.int32),
        top_p_B=torch.full((rows,), top_p),
    )
    assert_same_choices(kernels.sample(logits, inputs), REFERENCE.sample(logits, inputs))


def test_forbidden_tokens_are_never_drawn(kernels: TritonKernels) -> None:
    logits = torch.full((len(ROWS), VOCAB), float("-inf"))
    logits[:, [3, 4567]] = 0.5
    sampled = kernels.sample(logits, make_inputs(Tier.SAMPLED))
    assert set(sampled.ids_B.tolist()) <= {3, 4567}
    assert_same_choices(sampled, REFERENCE.sample(logits, make_inputs(Tier.SAMPLED)))


def test_rows_that_need_more_beside_rows_that_do_not(kernels: TritonKernels, dtype: torch.dtype) -> None:
    demanding = [
        Row(replace(RuleSet(RULES).demand_all(), top_k=40, seed=5), range(50), 20),
        Row(SamplingParams(do_sample=True, typical_p=0.8, top_n=3, seed=6), range(9), 5),
        Row(SamplingParams(repetition_penalty=1.5), range(60), 5),
    ]
    rows = [demanding[0], *ROWS, *demanding[1:]]
    logits = make_logits(dtype, len(rows))
    inputs = inputs_of_rows(rows, logits, eos_token_ids=[7])
    actual, expected = kernels.sample(logits, inputs), REFERENCE.sample(logits, inputs)
    assert_same_choices(actual, expected)
    assert actual.top_ids_RN is not None
    assert expected.top_ids_RN is not None
    assert actual.top_ids_RN.tolist() == expected.top_ids_RN.tolist()
    torch.testing.assert_close(actual.top_logprobs_RN, expected.top_logprobs_RN)


@pytest.mark.parametrize("vocab_size", [31, 32, 4096, 4097, 10_001])
def test_token_masks(kernels: TritonKernels, dtype: torch.dtype, vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(4, vocab_size, generator=generator).to(dtype)
    masks = torch.randint(-(2**31), 2**31, (2, -(-vocab_size // 32)), generator=generator).int()
    rows = torch.tensor([3, 1])
    masked = kernels.apply_bitmask(logits.clone(), rows, masks)
    assert torch.equal(masked, REFERENCE.apply_bitmask(logits.clone(), rows, masks))
    assert torch.equal(masked[[0, 2]], logits[[0, 2]])


def test_which_tiers_can_be_captured(kernels: TritonKernels) -> None:
    assert [kernels.captures(tier) for tier in Tier] == [True, True, False]
