"""Every logits rule against its plain form, and what must hold for any of them and for all together."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import Tensor

from tests.support.sampling import Row, make_inputs
from tgi_core.contract import Kernels
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling.params import SamplingParams, Tier
from tgi_core.sampling.rules import LogitsRule, Stage
from tgi_core.sampling.rules.builtin import RULES
from tgi_cpu.kernels import CpuKernels

INF = float("inf")
SCORE_RULES = [rule for rule in RULES if rule.stage is Stage.SCORES]
CUTS = [rule for rule in RULES if rule.stage is Stage.DISTRIBUTION]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
both_kernels = pytest.mark.parametrize("kernels", [ReferenceKernels(), CpuKernels()], ids=["reference", "cpu"])

penalties = st.floats(-2, 2, width=32)


@st.composite
def active_params(draw: st.DrawFn, vocab_size: int) -> SamplingParams:
    """Parameters that ask for anything at all."""
    ids = st.integers(0, vocab_size - 1)
    return SamplingParams(
        do_sample=draw(st.booleans()),
        temperature=draw(st.sampled_from([1.0, 0.1, 0.7, 1.5, 100.0])),
        top_k=draw(st.sampled_from([0, 0, 1, 3, 1000])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.9, 0.01])),
        typical_p=draw(st.sampled_from([1.0, 0.95, 0.5, 0.01])),
        min_p=draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.2, 0.3, 1e-38, 3e38])),
        seed=draw(st.integers(0, 2**64 - 1)),
        choice=draw(st.integers(0, 3)),
        frequency_penalty=draw(penalties),
        presence_penalty=draw(penalties),
        relative_frequency_penalty=draw(penalties),
        logit_bias=draw(st.dictionaries(ids, st.floats(-100, 100, width=32), max_size=5)),
        allowed_token_ids=tuple(draw(st.lists(ids, max_size=4, unique=True))),
        bad_words=tuple(draw(st.lists(st.lists(ids, min_size=1, max_size=3).map(tuple), max_size=4))),
        min_tokens=draw(st.integers(0, 6)),
        watermark_gamma=draw(st.floats(0, 1)),
        watermark_delta=draw(st.sampled_from([0.0, 2.0, -3.5])),
        top_n=draw(st.integers(0, 4)),
        raw_logprobs=draw(st.booleans()),
    )


class Case(NamedTuple):
    """Logits with masked tokens and ties, rows and EOS ids."""

    logits_BV: Tensor
    rows: list[Row]
    eos_token_ids: list[int]

    def order(self, indexes: list[int]) -> Case:
        return Case(self.logits_BV[indexes], [self.rows[index] for index in indexes], self.eos_token_ids)


@st.composite
def cases(draw: st.DrawFn, min_rows: int = 1) -> Case:
    vocab_size = draw(st.integers(2, 50))
    count = draw(st.integers(min_rows, 4))
    ids = st.integers(0, vocab_size - 1)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    logits_BV = torch.randn(count, vocab_size, generator=generator) * draw(st.sampled_from([0.5, 3.0, 30.0]))
    if draw(st.booleans()):
        # Many equal scores, as in 16-bit types.
        logits_BV = logits_BV.round()
    masked_BV = torch.rand(count, vocab_size, generator=generator) < draw(st.sampled_from([0.0, 0.3, 0.9]))
    masked_BV[torch.arange(count), torch.randint(vocab_size, (count,), generator=generator)] = False
    rows = []
    for _ in range(count):
        prompt = draw(st.lists(ids, min_size=1, max_size=8))
        output = draw(st.lists(ids, max_size=8))
        rows.append(Row(draw(active_params(vocab_size)), prompt + output, len(prompt)))
    return Case(logits_BV.masked_fill(masked_BV, -INF), rows, draw(st.lists(ids, max_size=2, unique=True)))


def apply(rule: LogitsRule, case: Case) -> Tensor:
    """The rule alone, as a step of the full tier applies it, whether a row needs it or not."""
    inputs = make_inputs(case.rows, case.logits_BV, tier=Tier.FULL, eos_token_ids=case.eos_token_ids)
    assert inputs.rule_rows is not None
    given_BV = case.logits_BV.clone()
    result_BV = rule.apply(given_BV, inputs.rule_rows)
    assert torch.equal(given_BV, case.logits_BV), "a rule must not overwrite its input"
    return result_BV


@pytest.mark.parametrize("rule", SCORE_RULES, ids=lambda rule: rule.name)
@given(case=cases())
@settings(max_examples=40, deadline=None)
def test_device_form_equals_plain_form(rule: LogitsRule, case: Case) -> None:
    result_BV = apply(rule, case)
    for scores_V, row, result_V in zip(case.logits_BV, case.rows, result_BV, strict=True):
        expected_V = torch.tensor(rule.reference(scores_V.double().tolist(), row.context(case.eos_token_ids)))
        torch.testing.assert_close(result_V, expected_V.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", CUTS, ids=lambda rule: rule.name)
@given(case=cases())
@settings(max_examples=40, deadline=None)
def test_cuts_keep_what_the_plain_form_keeps(rule: LogitsRule, case: Case) -> None:
    """Up to the rounding of float32: a slightly weaker and a slightly stronger cut enclose the result."""
    result_BV = apply(rule, case)
    for scores_V, row, result_V in zip(case.logits_BV, case.rows, result_BV, strict=True):
        scores = scores_V.double().tolist()
        assume(not has_near_ties(scores))
        if not rule.is_active(replace(row.params, do_sample=True)):
            assert same_bits(scores_V, result_V)
            continue
        kept = {token for token, score in enumerate(result_V.tolist()) if score > -INF}
        assert kept
        assert torch.equal(result_V[sorted(kept)], scores_V[sorted(kept)])
        bounds = []
        for factor in (1 - 1e-5, 1 + 1e-5):
            changed = {p.name: getattr(row.params, p.name) * factor for p in rule.parameters}
            plain = rule.reference(scores, row.context()._replace(params=replace(row.params, **changed)))
            bounds.append({token for token, score in enumerate(plain) if score > -INF})
        fewest, most = sorted(bounds, key=len)
        assert fewest <= kept <= most


def has_near_ties(scores: list[float]) -> bool:
    """Whether rounding could swap two tokens in the order of their distance to the entropy."""
    probs = torch.tensor(scores).double().softmax(0)
    entropy = -(probs[probs > 0] * probs[probs > 0].log()).sum()
    distances = sorted((entropy + probs[probs > 0].unique().log()).abs().tolist())
    return any(0 < far - near < 1e-4 for near, far in pairwise(distances))


@every_rule
@given(case=cases())
@settings(max_examples=12, deadline=None)
def test_neutral_parameters_change_no_bit(rule: LogitsRule, case: Case) -> None:
    neutral = replace(
        case.rows[0].params,
        **{p.name: p.neutral for p in rule.parameters},
        logit_bias={},
        allowed_token_ids=(),
        bad_words=(),
    )
    rows = [case.rows[0]._replace(params=neutral), *case.rows[1:]]
    zeros_BV = torch.where(case.logits_BV.abs() < 1, case.logits_BV * -0.0, case.logits_BV)
    for logits_BV in (case.logits_BV, zeros_BV):
        result_BV = apply(rule, case._replace(rows=rows, logits_BV=logits_BV))
        assert same_bits(result_BV[0], logits_BV[0])


@every_rule
@given(case=cases(min_rows=2), randomness=st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None)
def test_a_row_does_not_depend_on_its_neighbours(rule: LogitsRule, case: Case, randomness: object) -> None:
    order = list(range(len(case.rows)))
    randomness.shuffle(order)  # type: ignore[attr-defined]
    together = apply(rule, case)
    assert same_bits(apply(rule, case.order(order)), together[order])
    assert same_bits(apply(rule, case.order([0])), together[:1])


@every_rule
@given(case=cases())
@settings(max_examples=12, deadline=None)
def test_forbidden_tokens_stay_forbidden_and_nothing_becomes_nan(rule: LogitsRule, case: Case) -> None:
    result_BV = apply(rule, case)
    assert not result_BV.isnan().any()
    assert (result_BV[case.logits_BV == -INF] == -INF).all()
    assert (result_BV.amax(dim=-1) > -INF).all()
    assert (result_BV < INF).all()


@both_kernels
@given(case=cases(min_rows=2), randomness=st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_all_rules_together(kernels: Kernels, case: Case, randomness: object) -> None:
    """No permutation of a batch changes a bit of what its rows get; forbidden tokens are never chosen."""
    order = list(range(len(case.rows)))
    randomness.shuffle(order)  # type: ignore[attr-defined]
    results = []
    for part in (case, case.order(order), case.order([0])):
        inputs = make_inputs(part.rows, part.logits_BV, eos_token_ids=part.eos_token_ids)
        results.append(kernels.sample(part.logits_BV.clone(), inputs))
    together, shuffled, alone = results
    assert torch.equal(shuffled.ids_B, together.ids_B[order])
    assert same_bits(shuffled.logprobs_B, together.logprobs_B[order])
    assert torch.equal(alone.ids_B, together.ids_B[:1])
    assert same_bits(alone.logprobs_B, together.logprobs_B[:1])
    assert not together.logprobs_B.isnan().any()
    assert (case.logits_BV.gather(1, together.ids_B[:, None]) > -INF).all()


@given(case=cases())
@settings(max_examples=40, deadline=None)
def test_both_kernels_agree(case: Case) -> None:
    """Also on the alternatives: of a row's they are those of the log-probabilities that it reports."""
    inputs = make_inputs(case.rows, case.logits_BV, eos_token_ids=case.eos_token_ids)
    one = ReferenceKernels().sample(case.logits_BV.clone(), inputs)
    other = CpuKernels().sample(case.logits_BV.clone(), inputs)
    assert torch.equal(one.ids_B, other.ids_B)
    torch.testing.assert_close(one.logprobs_B, other.logprobs_B, rtol=1e-5, atol=1e-5)
    assert (one.top_ids_RN is None) == (other.top_ids_RN is None) == (inputs.top_n == 0)
    if one.top_ids_RN is not None and other.top_ids_RN is not None:
        assert torch.equal(one.top_ids_RN, other.top_ids_RN)
        torch.testing.assert_close(one.top_logprobs_RN, other.top_logprobs_RN)


def same_bits(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first.contiguous().view(torch.int32), second.contiguous().view(torch.int32))


def test_typical_sampling_by_hand() -> None:
    """Information of 1, 2, 3 and 3 bits, an entropy of 1.75: the order is second, first, third, last."""
    logits_BV = torch.tensor([[math.log(0.5), math.log(0.25), math.log(0.125), math.log(0.125)]])
    (typical,) = [rule for rule in CUTS if rule.name == "typical_p"]
    for mass, kept in ((0.2, [1]), (0.3, [0, 1]), (0.8, [0, 1, 2])):
        row = Row(SamplingParams(do_sample=True, typical_p=mass))
        result_BV = apply(typical, Case(logits_BV, [row], []))
        assert (result_BV[0] > -INF).nonzero().flatten().tolist() == kept
