"""Attention in the forms that the card is fast at: one fused call for prompts, products over all blocks for decodes."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec, FlatBlocks
from tgi_core.errors import ExitCode, StartupError

_HIDDEN = -1e30
"""Added to, or put in the place of, a score that does not count. A number: rows that see nothing stay numbers too."""

_FEWEST_PARAMETERS = 11
"""Of the fused attention: those up to the side of the padding. Later ones brought what is in ``_LATER``."""

_LATER: tuple[Any, ...] = (False, False, (-1, -1), None)
"""Neither the dropout mask nor the probabilities are wanted, and there are no window and no sinks."""


class FusedPrefill:
    """Prompts through the SDK's FusedSDPA, whose number of parameters has grown with its releases.

    Raises:
        StartupError: the SDK's has fewer or more parameters than are known.
    """

    def __init__(self) -> None:
        from habana_frameworks.torch.hpex.kernels import FusedSDPA

        # The first parameter is autograd's context.
        count = len(inspect.signature(FusedSDPA.forward).parameters) - 1
        if not _FEWEST_PARAMETERS <= count <= _FEWEST_PARAMETERS + len(_LATER):
            raise StartupError(
                f"The Gaudi SDK's FusedSDPA takes {count} arguments, and 11 to 15 are known.",
                "Use a release of the SDK from 1.21 to 1.24, or a newer tgi-serve.",
                ExitCode.BACKEND,
            )
        self._apply: Any = FusedSDPA.apply
        self._later = _LATER[: count - _FEWEST_PARAMETERS]

    def __call__(self, q_THD: Tensor, cache_NP2KD: Tensor, batch: AttentionBatch, spec: AttentionSpec) -> Tensor:
        """See ``Kernels.attention``; rows of the same length, over all columns of their block tables."""
        rows, q_len = len(batch.q_lens), batch.q_lens[0]
        device, columns = q_THD.device, batch.block_tables_BM.shape[1]
        # Columns behind a row's length name anything.
        starts_M = torch.arange(columns, device=device) * batch.block_size
        blocks_BM = torch.where(starts_M < batch.kv_lens_B[:, None], batch.block_tables_BM, 0)
        entries_BC2KD = cache_NP2KD.index_select(0, blocks_BM.flatten().long()).view(rows, -1, *cache_NP2KD.shape[2:])
        keys_BKCD, values_BKCD = (entries_BC2KD[:, :, index].transpose(1, 2) for index in (0, 1))
        positions_BQ = batch.kv_lens_B.long()[:, None] - q_len + torch.arange(q_len, device=device)
        distances_BQC = positions_BQ[:, :, None] - torch.arange(columns * batch.block_size, device=device)
        hidden_BQC = distances_BQC < 0
        if batch.window is not None:
            hidden_BQC = hidden_BQC | (distances_BQC >= batch.window)
        mask_BQC = torch.zeros_like(hidden_BQC, dtype=q_THD.dtype).masked_fill(hidden_BQC, _HIDDEN)
        is_short = q_THD.dtype is torch.bfloat16
        output_BHQD: Tensor = self._apply(
            q_THD.reshape(rows, q_len, *q_THD.shape[1:]).transpose(1, 2),
            keys_BKCD,
            values_BKCD,
            mask_BQC[:, None],
            0.0,
            # A chunk's first token is not the first of its keys: the mask says what it sees.
            False,
            spec.scale,
            "fp32" if is_short else "None",
            True,
            None,
            "right",
            *self._later,
        )
        return output_BHQD.transpose(1, 2).flatten(0, 1)


def flat_decode(
    q_BHD: Tensor, cache_NP2KD: Tensor, batch: AttentionBatch, flat: FlatBlocks, spec: AttentionSpec
) -> Tensor:
    """See ``Kernels.attention``; what belongs to which row is a matrix of ones, so that most of it is products.

    Source: the paged attention of vLLM's plugin for Gaudi.
    """
    rows, device = len(q_BHD), q_BHD.device
    owned_FB = (flat.owners_F[:, None] == torch.arange(rows, device=device)).float()
    entries_FP2KD = cache_NP2KD.index_select(0, flat.blocks_F.long())
    keys_FKPD, values_FKPD = (entries_FP2KD[:, :, index].transpose(1, 2).float() for index in (0, 1))
    q_FKGD = (owned_FB @ q_BHD.float().flatten(1)).view(len(owned_FB), spec.num_kv_heads, -1, spec.head_dim)
    scores_FKGP = q_FKGD @ keys_FKPD.transpose(-1, -2) * spec.scale
    last_positions_F = (batch.kv_lens_B.long() - 1).index_select(0, flat.owners_F.clamp(max=rows - 1))
    distances_FP = (last_positions_F - flat.starts_F)[:, None] - torch.arange(batch.block_size, device=device)
    hidden_FP = distances_FP < 0
    if batch.window is not None:
        hidden_FP = hidden_FP | (distances_FP >= batch.window)
    scores_FKGP = scores_FKGP.masked_fill(hidden_FP[:, None, None], _HIDDEN)
    # What pads the list belongs to a row more, which is cut off.
    peaks_BX = torch.full((rows + 1, spec.num_heads), _HIDDEN, device=device)
    peaks_BX.index_reduce_(0, flat.owners_F, scores_FKGP.amax(dim=-1).flatten(1), "amax")
    peaks_FKG1 = peaks_BX.index_select(0, flat.owners_F).view(*q_FKGD.shape[:3], 1)
    weights_FKGP = (scores_FKGP - peaks_FKG1).exp()
    weighed_FX = (weights_FKGP @ values_FKPD).flatten(1)
    sums_FX = weights_FKGP.sum(dim=-1).flatten(1)
    output_BHD = (owned_FB.t() @ weighed_FX).view(rows, spec.num_heads, -1)
    # A row without blocks has a sum of 0.
    sums_BH1 = (owned_FB.t() @ sums_FX).clamp(min=torch.finfo(torch.float32).tiny)[..., None]
    return (output_BHD / sums_BH1).to(q_BHD.dtype)
