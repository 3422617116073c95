"""The sampling rules of both implementations against naive loops, and their corners."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from tests.support.sampling import Row, make_inputs, sample
from tgi_core.contract import Kernels
from tgi_core.reference import ReferenceKernels
from tgi_core.reference.noise import gumbel_noise
from tgi_core.reference.sampling import WHOLE_ROWS
from tgi_core.sampling.params import SamplingParams, Tier
from tgi_core.sampling.rules import RuleSet
from tgi_core.sampling.rules.builtin import RULES
from tgi_cpu.kernels import CpuKernels

V = 1500
INF = float("inf")
both_kernels = pytest.mark.parametrize("kernels", [ReferenceKernels(), CpuKernels()], ids=["reference", "cpu"])


def run(
    kernels: Kernels,
    logits: Tensor,
    params: list[SamplingParams],
    tokens: list[list[int]] | None = None,
    position: int = 0,
) -> tuple[Tensor, Tensor]:
    """Ids and log-probabilities of rows that are ``position`` tokens into their output."""
    tokens = tokens or [[0] * (1 + position)] * len(params)
    rows = [Row(row, known, len(known) - position) for row, known in zip(params, tokens, strict=True)]
    return sample(kernels, logits, rows)[:2]


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
    counter = (torch.tensor([params.seed]), torch.tensor([params.choice]).int(), torch.tensor([position]).int())
    noise = gumbel_noise(*counter, torch.arange(len(scores)).int())[0]
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
    SamplingParams(do_sample=True, top_k=600, top_p=0.7, temperature=30.0, seed=13),
]


CHEAP_ROWS = [row for row in ROWS if row.tier is not Tier.FULL]


@both_kernels
@pytest.mark.parametrize("position", [0, 5, 6])
def test_every_row_equals_the_naive_loop(kernels: Kernels, position: int) -> None:
    logits = logits_of(len(ROWS), seed=position)
    tokens = [[(7 * row + step * step) % 40 for step in range(8 + 3 * row)] for row in range(len(ROWS))]
    ids, logprobs = run(kernels, logits, ROWS, tokens, position)
    assert ids.dtype is torch.int64
    assert logprobs.dtype is torch.float32
    for row, params in enumerate(ROWS):
        token, logprob = naive(logits[row], params, tokens[row], position)
        assert ids[row].item() == token, params
        assert logprobs[row].item() == pytest.approx(logprob, abs=1e-4), params


@both_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_cheap_tiers_equal_the_full_one(kernels: Kernels, dtype: torch.dtype) -> None:
    """A row gets the same bits beside rows that need everything."""
    logits = logits_of(len(CHEAP_ROWS) + 1, dtype=dtype)
    demanding = RuleSet(RULES).demand_all()
    full_ids, full_logprobs = run(kernels, logits, [*CHEAP_ROWS, demanding])
    for row, params in enumerate(CHEAP_ROWS):
        ids, logprobs = run(kernels, logits[row : row + 1], [params])
        assert ids.item() == full_ids[row].item(), params
        assert logprobs.item() == full_logprobs[row].item(), params


@both_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_takes_the_first_of_the_largest(kernels: Kernels, dtype: torch.dtype) -> None:
    logits = torch.zeros(2, V, dtype=dtype)
    logits[0, [900, 30, 700]] = 2.0
    ids, _ = run(kernels, logits, [SamplingParams()] * 2)
    assert ids.tolist() == [30, 0]


@both_kernels
def test_ties_at_the_cut_go_to_the_smaller_ids(kernels: Kernels) -> None:
    """More equal scores than places: ids 100, 200 and 300 stay, whatever the noise."""
    logits = torch.full((1, V), -5.0)
    logits[0, [800, 300, 100, 200, 900]] = 1.0
    row = SamplingParams(do_sample=True, top_k=3)
    chosen = {run(kernels, logits, [row], position=position)[0].item() for position in range(60)}
    assert chosen == {100, 200, 300}


@both_kernels
def test_all_scores_equal(kernels: Kernels) -> None:
    row = SamplingParams(do_sample=True, top_p=0.5, seed=1)
    ids, logprobs = run(kernels, torch.zeros(1, V), [row])
    assert ids.item() < V // 2
    assert logprobs.item() == pytest.approx(-math.log(V // 2), abs=1e-3)


@both_kernels
@pytest.mark.parametrize("temperature", [1e-30, 1e-10, 1e10, 1e30])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.5)])
def test_no_temperature_makes_nan(kernels: Kernels, temperature: float, top_k: int, top_p: float) -> None:
    logits = logits_of(1) * 100
    logits[0, 3] = -INF
    row = SamplingParams(do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p)
    ids, logprobs = run(kernels, logits, [row])
    assert math.isfinite(logprobs.item())
    assert ids.item() != 3
    if temperature < 1:
        assert ids.item() == logits.argmax().item()


@both_kernels
def test_masked_tokens_are_never_chosen(kernels: Kernels) -> None:
    logits = torch.full((3, V), -INF)
    logits[:, 77] = 0.5
    rows = [SamplingParams(), SamplingParams(do_sample=True), SamplingParams(do_sample=True, top_k=4, top_p=0.9)]
    ids, logprobs = run(kernels, logits, rows)
    assert ids.tolist() == [77, 77, 77]
    assert logprobs.tolist() == [0.0, 0.0, 0.0]


@both_kernels
def test_penalty_counts_a_token_once_and_stops_at_the_length(kernels: Kernels) -> None:
    logits = torch.zeros(2, V)
    logits[:, 1], logits[:, 5], logits[:, 9] = 10.0, 9.0, -1.0
    # Token 5 twice; token 1 stands only behind the row's length.
    rows = [SamplingParams(repetition_penalty=2.0)] * 2
    ids, logprobs = run(kernels, logits, rows, [[5, 5, 9], [5, 1, 9, 5]])
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
    logits = logits.expand(draws, V).contiguous()
    inputs = make_inputs([Row(row)] * draws, logits)._replace(positions_B=torch.arange(draws, dtype=torch.int32))
    ids, logprobs = kernels.sample(logits, inputs)[:2]
    expected = (logits[0, :8] / 1.3).softmax(0)
    counts = Counter(ids.tolist())
    chi_square = sum((counts[token] - draws * p) ** 2 / (draws * p) for token, p in enumerate(expected.tolist()))
    assert chi_square < 7 + 5 * math.sqrt(14)
    torch.testing.assert_close(logprobs, expected.log()[ids])


@both_kernels
def test_a_row_does_not_depend_on_its_neighbours(kernels: Kernels) -> None:
    logits = logits_of(len(ROWS), seed=9, dtype=torch.bfloat16)
    tokens = [[row, row + 1, 5, 6, 7, 8] for row in range(len(ROWS))]
    ids, logprobs = run(kernels, logits, ROWS, tokens, position=4)
    for row, params in enumerate(ROWS):
        alone_ids, alone_logprobs = run(kernels, logits[row : row + 1], [params], [tokens[row]], 4)
        assert alone_ids.item() == ids[row].item()
        assert alone_logprobs.item() == logprobs[row].item()


@both_kernels
@pytest.mark.parametrize("typical", [False, True])
def test_cuts_are_precise_in_a_large_vocabulary(kernels: Kernels, typical: bool) -> None:
    """A mass a little above or below that of 40 tokens; sums of float32 in a row would be off by ten times as much."""
    logits = logits_of(4, size=131_072, seed=1) * 4 / 3
    probs = logits.double().softmax(-1)
    information = -probs.log()
    order = (information - (probs * information).sum(-1, keepdim=True)).abs() if typical else information
    sums = probs.gather(1, order.sort(dim=-1).indices).cumsum(-1)
    for row in range(len(logits)):
        for mass, kept in ((sums[row, 39].item() - 2e-6, 40), (sums[row, 39].item() + 2e-6, 41)):
            params = SamplingParams(do_sample=True, seed=row, **{"typical_p" if typical else "top_p": mass})
            ids, logprobs = run(kernels, logits[row : row + 1], [params])
            expected = probs[row, ids[0]].log() - sums[row, kept - 1].log()
            assert logprobs[0].item() == pytest.approx(expected.item(), abs=5e-6)


@both_kernels
def test_many_rows_that_need_their_whole_distribution(kernels: Kernels) -> None:
    """More than are looked at together; each has parameters of its own."""
    count = 2 * WHOLE_ROWS + 5
    logits = logits_of(count, size=200)
    rows = [
        Row(SamplingParams(do_sample=True, typical_p=0.5 + row / 200, top_n=2, raw_logprobs=row % 3 == 0, seed=row))
        for row in range(count)
    ]
    together = sample(kernels, logits, rows)
    assert together.top_ids_RN is not None
    for row in range(count):
        alone = sample(kernels, logits[row : row + 1], rows[row : row + 1])
        assert alone.top_ids_RN is not None
        assert together.ids_B[row] == alone.ids_B[0]
        assert together.logprobs_B[row] == alone.logprobs_B[0]
        assert together.top_ids_RN[row].tolist() == alone.top_ids_RN[0].tolist()


@both_kernels
def test_vocabulary_smaller_than_any_candidate_list(kernels: Kernels) -> None:
    rows = [SamplingParams(do_sample=True, top_k=3, seed=2), SamplingParams(do_sample=True, top_p=0.99, seed=2)]
    logits = logits_of(2, size=5)
    ids, _ = run(kernels, logits, rows)
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
