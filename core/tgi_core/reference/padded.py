"""Reference kernels whose shapes never depend on values: for devices that compile a step once for each shape."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.contract.experts import ExpertWeights, Routed
from tgi_core.contract.kernels import AttentionBatch, AttentionSpec, PreparedAttention
from tgi_core.reference.attention import ScoreTerms
from tgi_core.reference.flat import flat_attention
from tgi_core.reference.kernels import ReferenceKernels
from tgi_core.reference.scores import finish_scores


class PaddedKernels(ReferenceKernels):
    """The reference under static shapes.

    Where every row of an ``AttentionBatch`` has the same ``q_len``, also in a flat decode, lengths are read on the
    device; a bucketed shard makes no other batch. Derive from it and override what a device does better.
    """

    @property
    def captures_experts(self) -> bool:
        return True

    def attention(
        self,
        q_THD: Tensor,
        cache_NP2KD: Tensor,
        prepared: PreparedAttention,
        spec: AttentionSpec,
        sinks_H: Tensor | None = None,
        *,
        distance_bias_HX: Tensor | None = None,
    ) -> Tensor:
        batch: AttentionBatch = prepared
        terms = ScoreTerms(sinks_H, distance_bias_HX)
        if batch.flat is not None:
            return flat_attention(q_THD, cache_NP2KD, batch, spec, terms)
        if len(set(batch.q_lens)) > 1:
            return super().attention(q_THD, cache_NP2KD, prepared, spec, sinks_H, distance_bias_HX=distance_bias_HX)
        return padded_attention(q_THD, cache_NP2KD, batch, spec, terms)

    def experts(self, x_TE: Tensor, weights: ExpertWeights, routed: Routed, activation: str) -> Tensor:
        # Every expert sees every token: what a token did not choose is weighed with 0.
        output_TE = torch.zeros_like(x_TE, dtype=torch.float32)
        for expert in range(len(weights.gate_up)):
            up_bias = None if weights.gate_up_bias_XN is None else weights.gate_up_bias_XN[expert]
            down_bias = None if weights.down_bias_XE is None else weights.down_bias_XE[expert]
            x_TF = self.gated_linear(x_TE, weights.gate_up[expert], up_bias, activation)
            share_T = (routed.weights_TR * (routed.experts_TR == expert)).sum(dim=1)
            output_TE += self.linear(x_TF, weights.down[expert], down_bias).float() * share_T[:, None]
        return output_TE.to(x_TE.dtype)


def padded_attention(
    q_THD: Tensor, cache_NP2KD: Tensor, batch: AttentionBatch, spec: AttentionSpec, terms: ScoreTerms
) -> Tensor:
    """Attention over all columns of the block tables; see ``Kernels.attention``."""
    rows, q_len = len(batch.q_lens), batch.q_lens[0]
    device = q_THD.device
    # Columns behind a row's length hold anything.
    columns_M = torch.arange(batch.block_tables_BM.shape[1], device=device) * batch.block_size
    blocks_BM = torch.where(columns_M < batch.kv_lens_B[:, None], batch.block_tables_BM, 0)
    entries_BCXKD = cache_NP2KD[blocks_BM.long()].flatten(1, 2)
    keys_BCKD = entries_BCXKD[:, :, 0]
    values_BCKD = entries_BCXKD[:, :, 1] if spec.latent_values is None else keys_BCKD[..., : spec.latent_values]
    q_BQKGD = q_THD.view(rows, q_len, spec.num_kv_heads, -1, spec.head_dim)
    scores_BKGQC = torch.einsum("bqkgd,bckd->bkgqc", q_BQKGD.float(), keys_BCKD.float()) * spec.scale
    positions_BQ = batch.kv_lens_B.long()[:, None] - q_len + torch.arange(q_len, device=device)
    distances_BQC = positions_BQ[:, :, None] - torch.arange(keys_BCKD.shape[1], device=device)
    scores_BKGQC = finish_scores(scores_BKGQC, distances_BQC, positions_BQ, spec, terms.distance_bias_HX)
    if terms.sinks_H is not None:
        sinks_KG11 = terms.sinks_H.float().view(spec.num_kv_heads, -1, 1, 1)
        sinks_BKGQ1 = sinks_KG11.expand(rows, -1, -1, q_len, 1)
        weights_BKGQC = torch.cat((scores_BKGQC, sinks_BKGQ1), dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights_BKGQC = scores_BKGQC.softmax(dim=-1)
    output_BQKGD = torch.einsum("bkgqc,bckd->bqkgd", weights_BKGQC, values_BCKD.float())
    return output_BQKGD.to(q_THD.dtype).reshape(len(q_THD), spec.num_heads, -1)
