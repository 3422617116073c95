"""Attention of decodes over one list of all rows' blocks: its work goes by blocks in all, whatever the longest row."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from tgi_core.contract.kernels import AttentionBatch, AttentionSpec
from tgi_core.reference.attention import ScoreTerms
from tgi_core.reference.scores import finish_scores

_LOWEST = torch.finfo(torch.float32).min
"""Lower than any score, and unlike -inf a number to subtract."""

_SMALLEST = torch.finfo(torch.float32).tiny


def flat_attention(
    q_BHD: Tensor, cache_NP2KD: Tensor, batch: AttentionBatch, spec: AttentionSpec, terms: ScoreTerms
) -> Tensor:
    """See ``Kernels.attention``; a row without blocks gets zeros. No shape depends on a value.

    Every block is weighed against the largest score of its row, then the sums and values of a row's blocks are added
    up. Source: Dao et al. 2023, "Flash-Decoding", over a list as in the paged attention of vLLM's plugin for Gaudi.
    """
    flat, rows, device = batch.flat, len(q_BHD), q_BHD.device
    assert flat is not None, "the batch of a flat decode"
    # One row more, without tokens, owns what pads the list.
    last_positions_B = pad(batch.kv_lens_B.long(), (0, 1)) - 1
    queries_BKGD = pad(q_BHD.float(), (0, 0, 0, 0, 0, 1)).view(rows + 1, spec.num_kv_heads, -1, spec.head_dim)
    entries_FPXKD = cache_NP2KD[flat.blocks_F.long()]
    keys_FPKD = entries_FPXKD[:, :, 0].float()
    values_FPKD = keys_FPKD[..., : spec.latent_values] if spec.latent_values else entries_FPXKD[:, :, 1].float()
    positions_F1 = last_positions_B.index_select(0, flat.owners_F)[:, None]
    starts_F1P = flat.starts_F[:, None, None] + torch.arange(batch.block_size, device=device)
    q_FKGD = queries_BKGD.index_select(0, flat.owners_F)
    scores_FKG1P = torch.einsum("fkgd,fpkd->fkgp", q_FKGD, keys_FPKD).unsqueeze(3) * spec.scale
    distances_F1P = positions_F1[:, :, None] - starts_F1P
    scores_FKGP = finish_scores(scores_FKG1P, distances_F1P, positions_F1, spec, terms.distance_bias_HX).squeeze(3)
    heads = queries_BKGD.shape[:3]
    if terms.sinks_H is None:
        peaks_BKG = torch.full(heads, _LOWEST, device=device)
    else:
        peaks_BKG = terms.sinks_H.float().view(1, *heads[1:]).expand(heads)
    owners_FKG = flat.owners_F[:, None, None].expand(-1, *heads[1:])
    peaks_BKG = peaks_BKG.scatter_reduce(0, owners_FKG, scores_FKGP.amax(dim=-1), "amax")
    weights_FKGP = (scores_FKGP - peaks_BKG.index_select(0, flat.owners_F)[..., None]).exp()
    if terms.sinks_H is None:
        sums_BKG = torch.zeros_like(peaks_BKG)
    else:
        sums_BKG = (terms.sinks_H.float().view(1, *heads[1:]) - peaks_BKG).exp()
    sums_BKG = sums_BKG.index_add(0, flat.owners_F, weights_FKGP.sum(dim=-1))
    weighed_FKGD = torch.einsum("fkgp,fpkd->fkgd", weights_FKGP, values_FPKD)
    output_BKGD = weighed_FKGD.new_zeros((*heads, weighed_FKGD.shape[-1])).index_add(0, flat.owners_F, weighed_FKGD)
    output_BKGD = output_BKGD / sums_BKG.clamp(min=_SMALLEST)[..., None]
    return output_BKGD[:rows].to(q_BHD.dtype).reshape(rows, spec.num_heads, -1)
