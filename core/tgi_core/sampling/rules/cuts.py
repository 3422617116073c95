"""Cuts of the distribution beyond top-k and top-p. Each leaves at least one token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_core.sampling.params import SamplingParams
from tgi_core.sampling.rules.rows import RuleRows
from tgi_core.sampling.rules.rule import LogitsRule, Parameter, RowContext, Stage

_NEGATIVE_INFINITY = float("-inf")


class MinP(LogitsRule):
    """Drops tokens less likely than a share of the best one's probability. Source: Nguyen et al. 2024."""

    name = "min_p"
    parameters = (Parameter("min_p", 0.0),)
    stage = Stage.DISTRIBUTION

    def is_active(self, params: SamplingParams) -> bool:
        return params.do_sample and params.min_p > 0.0

    def apply(self, scores_BV: Tensor, rows: RuleRows) -> Tensor:
        # p >= share * best p, in logarithms; the neutral share of 0 becomes -inf.
        lowest_B1 = scores_BV.amax(dim=-1, keepdim=True) + rows.value("min_p").log()
        return scores_BV.masked_fill(scores_BV < lowest_B1, _NEGATIVE_INFINITY)

    def reference(self, scores: Sequence[float], context: RowContext) -> list[float]:
        probs = _probabilities(scores)
        lowest = context.params.min_p * max(probs)
        return [score if p >= lowest else _NEGATIVE_INFINITY for score, p in zip(scores, probs, strict=True)]


class TypicalP(LogitsRule):
    """Locally typical sampling: keeps the tokens whose information lies nearest to the distribution's entropy.

    The smallest set of them with the wanted probability mass stays; of equally near ones the smaller ids come first.
    Source: Meister et al. 2022.
    """

    name = "typical_p"
    parameters = (Parameter("typical_p", 1.0),)
    stage = Stage.DISTRIBUTION

    def is_active(self, params: SamplingParams) -> bool:
        return params.do_sample and params.typical_p < 1.0

    def apply(self, scores_BV: Tensor, rows: RuleRows) -> Tensor:
        mass_B1 = rows.value("typical_p")
        logprobs_BV = scores_BV - scores_BV.amax(dim=-1, keepdim=True)
        logprobs_BV = logprobs_BV - _sum(logprobs_BV.exp()).log()
        probs_BV = logprobs_BV.exp()
        entropy_B1 = -_sum(torch.where(probs_BV > 0, probs_BV * logprobs_BV, 0.0))
        order_BV = (logprobs_BV + entropy_B1).abs_().sort(dim=-1, stable=True).indices
        sorted_probs_BV = probs_BV.gather(1, order_BV)
        mass_before_BV = sorted_probs_BV.cumsum(dim=-1) - sorted_probs_BV
        kept_BV = (mass_before_BV < mass_B1) | (mass_B1 >= 1)
        kept_BV[:, 0] = True
        return scores_BV.masked_fill(~torch.empty_like(kept_BV).scatter_(1, order_BV, kept_BV), _NEGATIVE_INFINITY)

    def reference(self, scores: Sequence[float], context: RowContext) -> list[float]:
        probs = _probabilities(scores)
        entropy = -sum(p * math.log(p) for p in probs if p > 0)
        distance = [abs(-math.log(p) - entropy) if p > 0 else math.inf for p in probs]
        result = [_NEGATIVE_INFINITY] * len(scores)
        mass = 0.0
        for token in sorted(range(len(scores)), key=lambda token: (distance[token], token)):
            result[token] = scores[token]
            mass += probs[token]
            if mass >= context.params.typical_p:
                break
        return result


def _sum(x_BV: Tensor) -> Tensor:
    """Each row's sum [B, 1]: a running one is precise, and in one order, where torch may split a lone row's sum."""
    return x_BV.cumsum(dim=-1)[:, -1:]


def _probabilities(scores: Sequence[float]) -> list[float]:
    best = max(scores)
    weights = [math.exp(score - best) for score in scores]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
