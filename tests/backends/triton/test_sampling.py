"""The choice of tokens against the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tgi_core.contract import SampleInputs
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling.params import Tier
from tgi_triton import TritonKernels

REFERENCE = ReferenceKernels()
VOCAB = 5000

# (do_sample, temperature, top_k, top_p)
ROWS = [
    (True, 1.0, 0, 1.0),
    (True, 0.7, 5, 1.0),
    (True, 1.5, 0, 0.9),
    (True, 2.0, 50, 0.5),
    (True, 1e-30, 0, 1.0),
    (False, 0.5, 3, 0.5),
    (True, 1.0, 1, 1.0),
    (True, 1.0, 0, 0.01),
    (True, 1.0, VOCAB, 0.999),
]


def make_logits(dtype: torch.dtype, rows: int) -> Tensor:
    return (torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)


def make_inputs(tier: Tier) -> SampleInputs:
    count = len(ROWS)
    do_sample, temperature, top_k, top_p = zip(*ROWS, strict=True)
    seeds = torch.randint(-(2**62), 2**62, (count,), generator=torch.Generator().manual_seed(1))
    return SampleInputs(
        slots_B=torch.arange(count),
        lengths_B=torch.full((count,), 7, dtype=torch.int32),
        positions_B=torch.arange(count, dtype=torch.int32) * 1000,
        temperature_B=torch.tensor(temperature),
        top_p_B=torch.tensor(top_p),
        top_k_B=torch.tensor(top_k, dtype=torch.int32),
        repetition_penalty_B=torch.full((count,), 1.3),
        do_sample_B=torch.tensor(do_sample),
        seed_B=seeds,
        tokens_SL=torch.arange(count * 9, dtype=torch.int32).view(count, 9),
        tier=tier,
        max_length=9,
    )


def assert_same_choices(actual: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    assert actual[0].tolist() == expected[0].tolist()
    assert actual[0].dtype == torch.int64
    torch.testing.assert_close(actual[1], expected[1], rtol=1e-4, atol=1e-4)


def test_greedy(kernels: TritonKernels, dtype: torch.dtype) -> None:
    logits = make_logits(dtype, len(ROWS))
    inputs = make_inputs(Tier.GREEDY)
    for _ in range(2):
        assert_same_choices(kernels.sample(logits, inputs), REFERENCE.sample(logits, inputs))


def test_the_first_of_equal_scores_wins(kernels: TritonKernels) -> None:
    logits = torch.zeros(2, VOCAB)
    logits[1, [4100, 77, 3000]] = 5.0
    ids_B, logprobs_B = kernels.sample(logits, make_inputs(Tier.GREEDY))
    assert ids_B.tolist() == [0, 77]
    assert logprobs_B[0].item() == pytest.approx(-torch.tensor(float(VOCAB)).log().item())


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
    for seed in range(2):
        changed = inputs._replace(seed_B=inputs.seed_B + seed)
        assert_same_choices(kernels.sample(logits, changed), REFERENCE.sample(logits, changed))


def test_forbidden_tokens_are_never_drawn(kernels: TritonKernels) -> None:
    logits = torch.full((len(ROWS), VOCAB), float("-inf"))
    logits[:, [3, 4567]] = 0.5
    ids_B, logprobs_B = kernels.sample(logits, make_inputs(Tier.SAMPLED))
    assert set(ids_B.tolist()) <= {3, 4567}
    assert_same_choices((ids_B, logprobs_B), REFERENCE.sample(logits, make_inputs(Tier.SAMPLED)))


def test_which_tiers_can_be_captured(kernels: TritonKernels) -> None:
    assert [kernels.captures(tier) for tier in Tier] == [True, True, False]
