"""Penalties on tokens that have occurred."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_core.sampling.rules.rows import RuleRows
from tgi_core.sampling.rules.rule import LogitsRule, Parameter, RowContext

_SMALLEST_PENALTY = 1e-30
"""Dividing by less could make scores infinite."""


class RepetitionPenalty(LogitsRule):
    """Divides positive and multiplies negative scores of every distinct token so far. Source: Keskar et al. 2019."""

    name = "repetition_penalty"
    parameters = (Parameter("repetition_penalty", 1.0),)

    def apply(self, scores_BV: Tensor, rows: RuleRows) -> Tensor:
        ids_BL = rows.token_ids()
        # Columns past the row's length repeat its first token: writing the same value twice changes nothing.
        ids_BL = torch.where(rows.is_known(), ids_BL, ids_BL[:, :1])
        picked_BL = scores_BV.gather(1, ids_BL)
        penalty_B1 = rows.value("repetition_penalty").clamp(min=_SMALLEST_PENALTY)
        penalised_BL = torch.where(picked_BL < 0, picked_BL * penalty_B1, picked_BL / penalty_B1)
        return scores_BV.scatter(1, ids_BL, penalised_BL)

    def reference(self, scores: Sequence[float], context: RowContext) -> list[float]:
        penalty = max(self.parameters[0].value(context.params), _SMALLEST_PENALTY)
        result = list(scores)
        for token in set(context.token_ids):
            result[token] = result[token] * penalty if result[token] < 0 else result[token] / penalty
        return result


class RelativeFrequencyPenalty(LogitsRule):
    """TGI's frequency penalty: subtracts the penalty times the token's share of prompt and output."""

    name = "relative_frequency_penalty"
    parameters = (Parameter("relative_frequency_penalty", 0.0),)

    def apply(self, scores_BV: Tensor, rows: RuleRows) -> Tensor:
        counts_BV = rows.counts(scores_BV.shape[-1])
        penalty_B1 = rows.value("relative_frequency_penalty") / rows.lengths_B[:, None]
        return scores_BV - counts_BV.mul_(penalty_B1)

    def reference(self, scores: Sequence[float], context: RowContext) -> list[float]:
        penalty = context.params.relative_frequency_penalty
        counts, length = Counter(context.token_ids), len(context.token_ids)
        return [score - penalty * counts[token] / length for token, score in enumerate(scores)]


class OutputPenalty(LogitsRule):
    """OpenAI's penalties, over the output alone: one for each occurrence (frequency), one for any (presence)."""

    name = "output_penalty"
    parameters = (Parameter("frequency_penalty", 0.0), Parameter("presence_penalty", 0.0))

    def apply(self, scores_BV: Tensor, rows: RuleRows) -> Tensor:
        counts_BV = rows.counts(scores_BV.shape[-1], output_only=True)
        presence_BV = torch.where(counts_BV > 0, rows.value("presence_penalty"), 0.0)
        return scores_BV - counts_BV.mul_(rows.value("frequency_penalty")).add_(presence_BV)

    def reference(self, scores: Sequence[float], context: RowContext) -> list[float]:
        frequency = context.params.frequency_penalty
        presence = context.params.presence_penalty
        counts = Counter(context.token_ids[context.prompt_len :])
        return [
            score - frequency * counts[token] - presence * (counts[token] > 0) for token, score in enumerate(scores)
        ]
