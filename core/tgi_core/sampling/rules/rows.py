"""What the device form of a rule may read of the rows it is applied to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class RuleRows(NamedTuple):
    """The rows of one sampling, as the device tables hold them.

    Attributes:
        slots_B: int64, rows of ``tokens_SL``.
        lengths_B, prompt_lens_B: int32, tokens so far (prompt and output) and how many of them are the prompt.
        tokens_SL: int32, the device's token table.
        max_length: upper bound of ``lengths_B``, known on the host.
        values_BP: float32, the values of all rules' parameters.
        columns: the column of each parameter in ``values_BP``.
        bias_ids_BX, bias_values_BX: int64 and float32, tokens whose scores are shifted and by how much; unused entries
            name token 0 and a shift of -0.0, which changes no bit of any score.
        allowed_ids_BX: int64, the only tokens that may be chosen; -1 in unused entries.
        bad_words_BWL: int64, sequences of tokens that the output must not have, each at the end of its row; -1 in
            unused entries.
        eos_ids_E: int64, the model's end-of-sequence ids.
    """

    slots_B: Tensor
    lengths_B: Tensor
    prompt_lens_B: Tensor
    tokens_SL: Tensor
    max_length: int
    values_BP: Tensor
    columns: Mapping[str, int]
    bias_ids_BX: Tensor
    bias_values_BX: Tensor
    allowed_ids_BX: Tensor
    bad_words_BWL: Tensor
    eos_ids_E: Tensor

    def value(self, name: str) -> Tensor:
        """A parameter of each row: float32 [B, 1]."""
        column = self.columns[name]
        return self.values_BP[:, column : column + 1]

    def token_ids(self) -> Tensor:
        """The rows' tokens: int64 [B, L]; what stands behind a row's length is stale but a token id."""
        return self.tokens_SL[:, : self.max_length].index_select(0, self.slots_B).long()

    def is_known(self, *, output_only: bool = False) -> Tensor:
        """Which entries of ``token_ids`` are tokens of the row, or of its output: bool [B, L]."""
        columns_L = torch.arange(self.max_length, device=self.lengths_B.device)
        known_BL = columns_L < self.lengths_B[:, None]
        return known_BL & (columns_L >= self.prompt_lens_B[:, None]) if output_only else known_BL

    def counts(self, vocab_size: int, *, output_only: bool = False) -> Tensor:
        """How often each token stands in the row, or in its output: float32 [B, V], exact whatever the order."""
        known_BL = self.is_known(output_only=output_only)
        counts_BV = torch.zeros((len(known_BL), vocab_size), device=known_BL.device)
        return counts_BV.scatter_add_(1, self.token_ids(), known_BL.float())

    def recent_output_ids(self, count: int) -> Tensor:
        """The last tokens of each row's output: int64 [B, count]; -2 where the output is shorter."""
        offsets_K = torch.arange(count, device=self.lengths_B.device) - count
        positions_BK = self.lengths_B.long()[:, None] + offsets_K
        ids_BK = self.tokens_SL[self.slots_B[:, None], positions_BK.clamp(min=0)].long()
        return torch.where(positions_BK >= self.prompt_lens_B[:, None], ids_BK, -2)

    def previous_ids(self) -> Tensor:
        """The last token of each row: int32 [B]."""
        return self.tokens_SL[self.slots_B, self.lengths_B.long() - 1]

    def take(self, rows_R: Tensor) -> RuleRows:
        """Some of the rows; ``rows`` is int64."""
        return self._replace(
            slots_B=self.slots_B.index_select(0, rows_R),
            lengths_B=self.lengths_B.index_select(0, rows_R),
            prompt_lens_B=self.prompt_lens_B.index_select(0, rows_R),
            values_BP=self.values_BP.index_select(0, rows_R),
            bias_ids_BX=self.bias_ids_BX.index_select(0, rows_R),
            bias_values_BX=self.bias_values_BX.index_select(0, rows_R),
            allowed_ids_BX=self.allowed_ids_BX.index_select(0, rows_R),
            bad_words_BWL=self.bad_words_BWL.index_select(0, rows_R),
        )
