"""The tokens that a request allows, all others being forbidden."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_core.sampling.params import SamplingParams
from tgi_core.sampling.rules.rows import RuleRows
from tgi_core.sampling.rules.rule import LogitsRule, RowContext

_NEGATIVE_INFINITY = float("-inf")


class AllowedTokens(LogitsRule):
    """Leaves only the tokens that the request names. They lie in a table of their own.

    Where a token mask leaves none of them, the mask wins: some token has to be chosen.
    """

    name = "allowed_token_ids"
    parameters = ()

    def is_active(self, params: SamplingParams) -> bool:
        return bool(params.allowed_token_ids)

    def apply(self, scores_BV: Tensor, rows: RuleRows) -> Tensor:
        ids_BX = rows.allowed_ids_BX
        is_used_BX = ids_BX >= 0
        # Counted and not set: unused entries point at token 0, which may be allowed too.
        counts_BV = torch.zeros_like(scores_BV).scatter_add_(1, ids_BX.clamp(min=0), is_used_BX.to(scores_BV.dtype))
        allowed_BV = scores_BV.masked_fill(counts_BV == 0, _NEGATIVE_INFINITY)
        has_any_B1 = allowed_BV.amax(dim=-1, keepdim=True) > _NEGATIVE_INFINITY
        return torch.where(is_used_BX.any(dim=-1, keepdim=True) & has_any_B1, allowed_BV, scores_BV)

    def reference(self, scores: Sequence[float], context: RowContext) -> list[float]:
        allowed = set(context.params.allowed_token_ids)
        if all(scores[token] == _NEGATIVE_INFINITY for token in allowed):
            return list(scores)
        return [score if token in allowed else _NEGATIVE_INFINITY for token, score in enumerate(scores)]
