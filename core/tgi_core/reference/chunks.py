"""Rows of many tokens, cut into chunks that are computed side by side."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract.states import StepRows
from tgi_core.transfer import upload


class Chunks(NamedTuple):
    """The rows that do not decode, cut: the first chunks of all rows, then the second ones of those that have any.

    Attributes:
        rows_R: int64, the rows, the longest first: those with an n-th chunk lead.
        counts: how many rows have an n-th chunk.
        tokens_YN: int64, each chunk's tokens; short chunks repeat their last one.
        is_own_YN: bool, which of them are not such repetitions.
    """

    rows_R: Tensor
    counts: list[int]
    tokens_YN: Tensor
    is_own_YN: Tensor

    def gather(self, x_TX: Tensor) -> Tensor:
        """What the chunks' tokens have: [T, ...] -> [Y, N, ...]."""
        return x_TX.index_select(0, self.tokens_YN.flatten()).view(*self.tokens_YN.shape, *x_TX.shape[1:])

    def scatter(self, x_YNX: Tensor, num_tokens: int) -> Tensor:
        """Back to the tokens: [Y, N, ...] -> [T, ...]; at tokens of rows that decode anything stands."""
        # Repetitions go behind the last one.
        output_TX = x_YNX.new_empty((num_tokens + 1, *x_YNX.shape[2:]))
        places_YN = self.tokens_YN.masked_fill(~self.is_own_YN, num_tokens)
        return output_TX.index_copy_(0, places_YN.flatten(), x_YNX.flatten(0, 1))[:num_tokens]


def cut(rows: StepRows, most: int, device: torch.device) -> Chunks:
    """Cut into chunks of ``most`` tokens, or as many as the longest row has; there are rows that do not decode."""
    by_length = sorted(range(rows.num_decodes, len(rows.q_lens)), key=lambda row: -rows.q_lens[row])
    longest = rows.q_lens[by_length[0]]
    size = min(most, longest)
    cuts = [
        (begin, rank)
        for begin in range(0, longest, size)
        for rank, row in enumerate(by_length)
        if begin < rows.q_lens[row]
    ]
    counts = [len(list(group)) for _, group in groupby(cuts, key=lambda cut: cut[0])]
    rows_R = upload(torch.tensor(by_length), device)
    begins_Y, ranks_Y = upload(torch.tensor(cuts), device).unbind(1)
    row_of_Y = rows_R.index_select(0, ranks_Y)
    wanted_YN = (rows.q_starts_B.index_select(0, row_of_Y) + begins_Y)[:, None] + torch.arange(size, device=device)
    lasts_Y1 = rows.q_starts_B.index_select(0, row_of_Y + 1)[:, None] - 1
    return Chunks(rows_R, counts, torch.minimum(wanted_YN, lasts_Y1), wanted_YN <= lasts_Y1)


def decays(decay_YHN: Tensor) -> Tensor:
    """How much of what a token adds is left at another: [Y, H, N, N], to the latter from the former; 0 before it.

    ``decay`` holds logarithms. Each is a sum of its own, since the difference of two sums from the chunk's start has
    the rounding of what lies before.
    """
    size = decay_YHN.shape[-1]
    seen_NN = torch.ones((size, size), dtype=torch.bool, device=decay_YHN.device).tril()
    sums_YHNN = torch.where(seen_NN.tril(-1), decay_YHN[..., None], 0.0).cumsum(dim=-2)
    return sums_YHNN.masked_fill_(~seen_NN, -torch.inf).exp_()
