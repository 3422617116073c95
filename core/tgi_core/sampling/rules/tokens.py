"""Rules about single tokens that a request or the model names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_core.sampling.params import SamplingParams
from tgi_core.sampling.rules.rows import RuleRows
from tgi_core.sampling.rules.rule import LogitsRule, Parameter, RowContext

_NEGATIVE_INFINITY = float("-inf")


class LogitBias(LogitsRule):
    """Adds a bias to the scores of tokens that the request names. Its values lie in a sparse table of their own."""

    name = "logit_bias"
    parameters = ()

    def is_active(self, params: SamplingParams) -> bool:
        return bool(params.logit_bias)

    def apply(self, scores_BV: Tensor, rows: RuleRows) -> Tensor:
        return scores_BV.scatter_add(1, rows.bias_ids_BX, rows.bias_values_BX)

    def reference(self, scores: Sequence[float], context: RowContext) -> list[float]:
        result = list(scores)
        for token, bias in context.params.logit_bias.items():
            result[token] += bias
        return result


class MinTokens(LogitsRule):
    """Forbids the model's end-of-sequence tokens until the output is long enough.

    Where a token mask leaves nothing but the end, the end stays: some token has to be chosen.
    """

    name = "min_tokens"
    parameters = (Parameter("min_tokens", 0.0),)

    def apply(self, scores_BV: Tensor, rows: RuleRows) -> Tensor:
        without_BV = scores_BV.index_fill(1, rows.eos_ids_E, _NEGATIVE_INFINITY)
        too_short_B1 = (rows.lengths_B - rows.prompt_lens_B)[:, None] < rows.value("min_tokens")
        has_others_B1 = without_BV.amax(dim=-1, keepdim=True) > _NEGATIVE_INFINITY
        return torch.where(too_short_B1 & has_others_B1, without_BV, scores_BV)

    def reference(self, scores: Sequence[float], context: RowContext) -> list[float]:
        ends = set(context.eos_token_ids)
        is_long_enough = len(context.token_ids) - context.prompt_len >= context.params.min_tokens
        has_others = any(score > _NEGATIVE_INFINITY for token, score in enumerate(scores) if token not in ends)
        if is_long_enough or not has_others:
            return list(scores)
        return [_NEGATIVE_INFINITY if token in ends else score for token, score in enumerate(scores)]
