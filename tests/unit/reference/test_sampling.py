"""The sampling rules of both implementations against naive loops, and their corners."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from tgi_core.contract import Kernels, SampleInputs
from tgi_core.reference import ReferenceKernels
from tgi_core.reference.noise import gumbel_noise
from tgi_core.sampling.params import SamplingParams, Tier
from tgi_cpu.kernels import CpuKernels

V = 1500
INF = float("inf")
both_kernels = pytest.mark.parametrize("kernels", [ReferenceKernels(), CpuKernels()], ids=["reference", "cpu"])


def inputs_of(rows: list[SamplingParams], tokens: list[list[int]] | None = None, position: int = 0) -> SampleInputs:
    tokens = tokens or [[0]] * len(rows)
    longest = max(len(row) for row in tokens)
    # What lies behind a row's tokens is stale: token 1.
    table = torch.tensor([row + [1] * (longest + 3 - len(row)) for row in tokens], dtype=torch.int32)
    return SampleInputs(
        slots_B=torch.arange(len(rows)),
        lengths_B=torch.tensor([len(row) for row in tokens], dtype=torch.int32),
        positions_B=torch.full((len(rows),), position, dtype=torch.int32),
        temperature_B=torch.tensor([row.temperature for row in rows]),
        top_p_B=torch.tensor([row.top_p for row in rows]),
        top_k_B=torch.tensor([row.top_k for row in rows], dtype=torch.int32),
        repetition_penalty_B=torch.tensor([row.repetition_penalty for row in rows]),
        do_sample_B=torch.tensor([row.do_sample for row in rows]),
        seed_B=torch.tensor([row.seed for row in rows]),
        tokens_SL=table,
        tier=max(row.tier for row in rows),
        max_length=longest,
    )


def logits_of(rows: int, seed: int = 0, dtype: torch.dtype = torch.float32, size: int = V) -> Tensor:
    return (torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


def naive(logits: Tensor, params: SamplingParams, tokens: list[int], position: int) -> tuple[int, float]:
    """One row by the book, in Python floats."""
    scores = logits.double().tolist()
    for token in set(tokens):
        scores[token] *= params.repetition_penalty if scores[token] < 0 else 1 / params.repetition_penalty
    if not params.do_sample:
        best = max(range(len(scores)), key=lambda token: (scores[token], -token))
        return best, scores[best] - math.log(sum(math.exp(score) for score in scores))
    scores = [score / params.temperature for score in scores]
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    if params.top_k:
        order = order[: params.top_k]
    peak = scores[order[0]]
    weights = [math.exp(scores[token] - peak) for token in order]
    if params.top_p < 1:
        mass, kept = 0.0, 0
        while mass < params.top_p * sum(weights):
            mass += weights[kept]
            kept += 1
        order, weights = order[:kept], weights[:kept]
    noise = gumbel_noise(torch.tensor([params.seed]), torch.tensor([position]).int(), torch.arange(len(scores)).int())[
        0
    ]
    best = max(order, key=lambda token: scores[token] + noise[token].item())
    return best, scores[best] - peak - math.log(sum(weights))


ROWS = [
    SamplingParams(),
    SamplingParams(repetition_penalty=1.7),
    SamplingParams(do_sample=True, seed=1),
    SamplingParams(do_sample=True, temperature=0.5, seed=2),
    SamplingParams(do_sample=True, temperature=3.0, seed=3),
    SamplingParams(do_sample=True, top_k=1, seed=4),
    SamplingParams(do_sample=True, top_k=7, seed=5),
    SamplingParams(do_sample=True, top_k=600, seed=6),
    SamplingParams(do_sample=True, top_k=5000, seed=7),
    SamplingParams(do_sample=True, top_p=0.5, seed=8),
    SamplingParams(do_sample=True, top_p=0.999, temperature=4.0, seed=9),
    SamplingParams(do_sample=True, top_p=1e-6, seed=10),
    SamplingParams(do_sample=True, top_k=50, top_p=0.8, temperature=1.5, repetition_penalty=1.3, seed=11),
    SamplingParams(do_sample=True, repetition_penalty=0.5, seed=12),
]


@both_kernels
@pytest.mark.parametrize("position", [0, 5, 6])
def test_every_row_equals_the_naive_loop(kernels: Kernels, position: int) -> None:
    logits = logits_of(len(ROWS), seed=position)
    tokens = [[(7 * row + step * step) % 40 for step in range(1 + 3 * row)] for row in range(len(ROWS))]
    ids, logprobs = kernels.sample(logits, inputs_of(ROWS, tokens, position))
    assert ids.dtype is torch.int64
    assert logprobs.dtype is torch.float32
    for row, params in enumerate(ROWS):
        token, logprob = naive(logits[row], params, tokens[row], position)
        assert ids[row].item() == token, params
        assert logprobs[row].item() == pytest.approx(logprob, abs=1e-4), params


@both_kernels
def test_the_cheap_tiers_equal_the_full_one(kernels: Kernels) -> None:
    for tier, row in ((Tier.GREEDY, SamplingParams()), (Tier.SAMPLED, SamplingParams(do_sample=True, seed=3))):
        logits = logits_of(3)
        inputs = inputs_of([row] * 3)
        ids, logprobs = kernels.sample(logits.clone(), inputs._replace(tier=tier))
        full_ids, full_logprobs = kernels.sample(logits.clone(), inputs._replace(tier=Tier.FULL))
        assert torch.equal(ids, full_ids)
        assert torch.equal(logprobs, full_logprobs)


@both_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_takes_the_first_of_the_largest(kernels: Kernels, dtype: torch.dtype) -> None:
    logits = torch.zeros(2, V, dtype=dtype)
    logits[0, [900, 30, 700]] = 2.0
    ids, _ = kernels.sample(logits, inputs_of([SamplingParams()] * 2))
    assert ids.tolist() == [30, 0]


@both_kernels
def test_ties_at_the_cut_go_to_the_smaller_ids(kernels: Kernels) -> None:
    """More equal scores than places: ids 100, 200 and 300 stay, whatever the noise."""
    logits = torch.full((1, V), -5.0)
    logits[0, [800, 300, 100, 200, 900]] = 1.0
    row = SamplingParams(do_sample=True, top_k=3)
    chosen = {kernels.sample(logits.clone(), inputs_of([row], position=position))[0].item() for position in range(60)}
    assert chosen == {100, 200, 300}


@both_kernels
def test_all_scores_equal(kernels: Kernels) -> None:
    row = SamplingParams(do_sample=True, top_p=0.5, seed=1)
    ids, logprobs = kernels.sample(torch.zeros(1, V), inputs_of([row]))
    assert ids.item() < V // 2
    assert logprobs.item() == pytest.approx(-math.log(V // 2), abs=1e-3)


@both_kernels
@pytest.mark.parametrize("temperature", [1e-30, 1e-10, 1e10, 1e30])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.5)])
def test_no_temperature_makes_nan(kernels: Kernels, temperature: float, top_k: int, top_p: float) -> None:
    logits = logits_of(1) * 100
    logits[0, 3] = -INF
    row = SamplingParams(do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p)
    ids, logprobs = kernels.sample(logits.clone(), inputs_of([row]))
    assert math.isfinite(logprobs.item())
    assert ids.item() != 3
    if temperature < 1:
        assert ids.item() == logits.argmax().item()


@both_kernels
def test_masked_tokens_are_never_chosen(kernels: Kernels) -> None:
    logits = torch.full((3, V), -INF)
    logits[:, 77] = 0.5
    rows = [SamplingParams(), SamplingParams(do_sample=True), SamplingParams(do_sample=True, top_k=4, top_p=0.9)]
    ids, logprobs = kernels.sample(logits, inputs_of(rows))
    assert ids.tolist() == [77, 77, 77]
    assert logprobs.tolist() == [0.0, 0.0, 0.0]


@both_kernels
def test_penalty_counts_a_token_once_and_stops_at_the_length(kernels: Kernels) -> None:
    logits = torch.zeros(2, V)
    logits[:, 1], logits[:, 5], logits[:, 9] = 10.0, 9.0, -1.0
    # Token 5 twice; token 1 stands only behind the row's length.
    rows = [SamplingParams(repetition_penalty=2.0)] * 2
    ids, logprobs = kernels.sample(logits.clone(), inputs_of(rows, [[5, 5, 9], [5, 1, 9, 5]]))
    assert ids.tolist() == [1, 1]
    for row, best in ((0, 10.0), (1, 5.0)):
        others = [best, 4.5, -2.0] + [0.0] * (V - 3)
        assert logprobs[row].item() == pytest.approx(best - math.log(sum(map(math.exp, others))), abs=1e-5)


@both_kernels
def test_frequencies_follow_the_probabilities(kernels: Kernels) -> None:
    """Chi-square over 8 tokens, 4000 draws: 7 degrees of freedom, 5 deviations wide."""
    logits = torch.full((1, V), -INF)
    logits[0, :8] = torch.tensor([0.0, 0.5, 1.0, 1.5, -1.0, 0.2, 0.7, -0.3])
    draws = 4000
    row = SamplingParams(do_sample=True, temperature=1.3)
    inputs = inputs_of([row] * draws)._replace(positions_B=torch.arange(draws, dtype=torch.int32))
    ids, logprobs = kernels.sample(logits.expand(draws, V).contiguous(), inputs)
    expected = (logits[0, :8] / 1.3).softmax(0)
    counts = Counter(ids.tolist())
    chi_square = sum((counts[token] - draws * p) ** 2 / (draws * p) for token, p in enumerate(expected.tolist()))
    assert chi_square < 7 + 5 * math.sqrt(14)
    torch.testing.assert_close(logprobs, expected.log()[ids])


@both_kernels
def test_a_row_does_not_depend_on_its_neighbours(kernels: Kernels) -> None:
    logits = logits_of(len(ROWS), seed=9, dtype=torch.bfloat16)
    tokens = [[row, row + 1] for row in range(len(ROWS))]
    ids, logprobs = kernels.sample(logits.clone(), inputs_of(ROWS, tokens, position=4))
    for row, params in enumerate(ROWS):
        alone_ids, alone_logprobs = kernels.sample(logits[row : row + 1].clone(), inputs_of([params], [tokens[row]], 4))
        assert alone_ids.item() == ids[row].item()
        assert alone_logprobs.item() == logprobs[row].item()


@both_kernels
def test_vocabulary_smaller_than_any_candidate_list(kernels: Kernels) -> None:
    rows = [SamplingParams(do_sample=True, top_k=3, seed=2), SamplingParams(do_sample=True, top_p=0.99, seed=2)]
    logits = logits_of(2, size=5)
    ids, _ = kernels.sample(logits, inputs_of(rows))
    assert ids.tolist() == [naive(logits[row], rows[row], [0], 0)[0] for row in range(2)]


@both_kernels
def test_bitmask(kernels: Kernels) -> None:
    size = 70
    logits = logits_of(3, size=size)
    allowed = [[0, 31, 32, 63, 69], [1]]
    words = torch.zeros(2, 3, dtype=torch.int64)
    for row, tokens in enumerate(allowed):
        for token in tokens:
            words[row, token // 32] |= 1 << (token % 32)
    masks = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    masked = kernels.apply_bitmask(logits.clone(), torch.tensor([2, 0]), masks)
    assert torch.equal(masked[1], logits[1])
    for row, tokens in ((2, allowed[0]), (0, allowed[1])):
        expected = torch.full((size,), -INF)
        expected[tokens] = logits[row, tokens]
        assert torch.equal(masked[row], expected)
