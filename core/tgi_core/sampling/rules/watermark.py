"""The watermark: green tokens get a higher score."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_core.sampling.mixing import TOKEN_STEP, mix, signed
from tgi_core.sampling.params import SamplingParams
from tgi_core.sampling.rules.rows import RuleRows
from tgi_core.sampling.rules.rule import LogitsRule, Parameter, RowContext
from tgi_core.sampling.watermark import HASH_KEY, is_green


class Watermark(LogitsRule):
    """Adds delta to the scores of green tokens; see ``tgi_core.sampling.watermark``."""

    name = "watermark"
    parameters = (Parameter("watermark_gamma", 0.5), Parameter("watermark_delta", 0.0))

    def is_active(self, params: SamplingParams) -> bool:
        return params.watermark_delta != 0.0

    def apply(self, scores_BV: Tensor, rows: RuleRows) -> Tensor:
        delta_B1 = rows.value("watermark_delta")
        token_ids_V = torch.arange(scores_BV.shape[-1], dtype=torch.int32, device=scores_BV.device)
        bits_BV = colour_bits(rows.previous_ids(), token_ids_V)
        # The bits are unsigned, the tensor is signed: both sides shift by 2**31.
        limit_B1 = (rows.value("watermark_gamma") * 2.0**32).long() - (1 << 31)
        green_BV = (bits_BV ^ signed(1 << 31)) < limit_B1
        return torch.where(green_BV & (delta_B1 != 0), scores_BV + delta_B1, scores_BV)

    def reference(self, scores: Sequence[float], context: RowContext) -> list[float]:
        gamma, previous = context.params.watermark_gamma, context.token_ids[-1]
        delta = context.params.watermark_delta
        return [score + delta if is_green(previous, token, gamma) else score for token, score in enumerate(scores)]


def colour_bits(previous_ids_B: Tensor, token_ids_V: Tensor) -> Tensor:
    """``tgi_core.sampling.watermark.colour_bits`` of int32 ids: int32 [B, V]."""
    first_key_B1 = mix(previous_ids_B[:, None] ^ HASH_KEY)
    second_key_B1 = mix(first_key_B1 ^ HASH_KEY)
    return mix((token_ids_V * signed(TOKEN_STEP)) ^ first_key_B1, second_key_B1)
