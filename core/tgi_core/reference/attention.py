"""Attention over the paged cache, one row after the other."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract.kernels import AttentionBatch, AttentionSpec


class ScoreTerms(NamedTuple):
    """What a layer has learned to add to its scores: a sink for each head, a bias for each head and distance."""

    sinks_H: Tensor | None = None
    distance_bias_HX: Tensor | None = None


def paged_attention(
    q_THD: Tensor,
    cache_NP2KD: Tensor,
    batch: AttentionBatch,
    spec: AttentionSpec,
    terms: ScoreTerms,
) -> Tensor:
    """Causal attention of every row; see ``Kernels.attention``."""
    output_THD = q_THD.new_empty(*q_THD.shape[:2], spec.latent_values or spec.head_dim)
    start = 0
    for row, (q_len, kv_len) in enumerate(zip(batch.q_lens, batch.kv_lens, strict=True)):
        kv_CXKD, first = _gather_row(cache_NP2KD, batch, row, q_len, kv_len)
        keys_CKD = kv_CXKD[:, 0]
        values_CKD = kv_CXKD[:, 1] if spec.latent_values is None else keys_CKD[..., : spec.latent_values]
        positions_Q = torch.arange(kv_len - q_len, kv_len, device=q_THD.device)
        positions_C = torch.arange(first, kv_len, device=q_THD.device)
        visible_QC = positions_C <= positions_Q[:, None]
        if batch.window is not None:
            visible_QC &= positions_C > positions_Q[:, None] - batch.window
        if spec.chunk is not None:
            visible_QC &= positions_C >= positions_Q[:, None] // spec.chunk * spec.chunk
        q_QHD, distances_QC = q_THD[start : start + q_len], positions_C - positions_Q[:, None]
        scores_HQC = _scores(q_QHD, keys_CKD, distances_QC, spec)
        if terms.distance_bias_HX is not None:
            last = terms.distance_bias_HX.shape[1] - 1
            scores_HQC = scores_HQC + terms.distance_bias_HX.float()[:, (-distances_QC).clamp(0, last)]
        scores_HQC = scores_HQC.masked_fill(~visible_QC, float("-inf"))
        output_THD[start : start + q_len] = _weigh(scores_HQC, values_CKD, terms.sinks_H, spec)
        start += q_len
    return output_THD


def _gather_row(cache_NP2KD: Tensor, batch: AttentionBatch, row: int, q_len: int, kv_len: int) -> tuple[Tensor, int]:
    """Cache entries and first position of what the row can see; columns before its window are stale and left alone."""
    first_visible = 0 if batch.window is None else max(0, kv_len - q_len - batch.window + 1)
    first_block, end_block = first_visible // batch.block_size, -(-kv_len // batch.block_size)
    blocks_M = batch.block_tables_BM[row, first_block:end_block]
    first = first_block * batch.block_size
    return cache_NP2KD.index_select(0, blocks_M).flatten(0, 1)[: kv_len - first], first


def _scores(q_QHD: Tensor, keys_CKD: Tensor, distances_QC: Tensor, spec: AttentionSpec) -> Tensor:
    # Heads of a group share its keys without a copy of them for each: of latent keys there would be one a query head.
    q_QKGD = q_QHD.float().view(len(q_QHD), spec.num_kv_heads, -1, spec.head_dim)
    scores_HQC = torch.einsum("qkgd,ckd->kgqc", q_QKGD, keys_CKD.float()).flatten(0, 1) * spec.scale
    if spec.soft_cap is not None:
        scores_HQC = torch.tanh(scores_HQC / spec.soft_cap) * spec.soft_cap
    if spec.alibi_slopes is not None:
        slopes_H11 = torch.tensor(spec.alibi_slopes, device=q_QHD.device)[:, None, None]
        scores_HQC = scores_HQC + slopes_H11 * distances_QC
    return scores_HQC


def _weigh(scores_HQC: Tensor, values_CKD: Tensor, sinks_H: Tensor | None, spec: AttentionSpec) -> Tensor:
    """Softmax of the scores, and the values it weighs; the sink takes its share of the softmax and has no value."""
    if sinks_H is not None:
        sinks_HQ1 = sinks_H.float()[:, None, None].expand(-1, scores_HQC.shape[1], 1)
        weights_HQC = torch.cat((scores_HQC, sinks_HQ1), dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights_HQC = scores_HQC.softmax(dim=-1)
    weights_KGQC = weights_HQC.view(spec.num_kv_heads, -1, *weights_HQC.shape[1:])
    return torch.einsum("kgqc,ckd->qkgd", weights_KGQC, values_CKD.float()).flatten(1, 2).to(values_CKD.dtype)
