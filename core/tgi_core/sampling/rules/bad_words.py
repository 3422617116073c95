"""Sequences of tokens that an output must not have."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_core.sampling.params import SamplingParams
from tgi_core.sampling.rules.rows import RuleRows
from tgi_core.sampling.rules.rule import LogitsRule, RowContext

_NEGATIVE_INFINITY = float("-inf")


class BadWords(LogitsRule):
    """Forbids the last token of each sequence where the output ends with the others, as vLLM does.

    Where that leaves no token, all stay: some token has to be chosen. The sequences lie in a table of their own.
    """

    name = "bad_words"
    parameters = ()

    def is_active(self, params: SamplingParams) -> bool:
        return bool(params.bad_words)

    def apply(self, scores_BV: Tensor, rows: RuleRows) -> Tensor:
        words_BWL = rows.bad_words_BWL
        first_BWK, last_BW = words_BWL[..., :-1], words_BWL[..., -1]
        recent_B1K = rows.recent_output_ids(first_BWK.shape[-1])[:, None]
        matches_BW = ((first_BWK == recent_B1K) | (first_BWK < 0)).all(dim=-1) & (last_BW >= 0)
        # Minus zero changes no bit of what it is added to.
        changes_BW = torch.where(matches_BW, _NEGATIVE_INFINITY, -0.0).to(scores_BV.dtype)
        without_BV = scores_BV.scatter_add(1, last_BW.clamp(min=0), changes_BW)
        has_others_B1 = without_BV.amax(dim=-1, keepdim=True) > _NEGATIVE_INFINITY
        return torch.where(has_others_B1, without_BV, scores_BV)

    def reference(self, scores: Sequence[float], context: RowContext) -> list[float]:
        output = list(context.token_ids[context.prompt_len :])
        banned = {
            word[-1]
            for word in context.params.bad_words
            if len(word) - 1 <= len(output) and output[len(output) - len(word) + 1 :] == list(word[:-1])
        }
        result = [_NEGATIVE_INFINITY if token in banned else score for token, score in enumerate(scores)]
        return result if max(result) > _NEGATIVE_INFINITY else list(scores)
