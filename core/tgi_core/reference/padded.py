"""Reference kernels whose shapes never depend on values: for devices that compile a step once for each shape."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.contract.experts import ExpertWeights, Routed
from tgi_core.contract.kernels import AttentionBatch, AttentionSpec, PreparedAttention
from tgi_core.reference.attention import ScoreTerms
from tgi_core.reference.kernels import ReferenceKernels


class PaddedKernels(ReferenceKernels):
    """The reference under static shapes.

    Where every row of an ``AttentionBatch`` has the same ``q_len``, lengths are read on the device; a bucketed shard
    makes no other batch. Derive from it and override what a device does better.
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
        if len(set(batch.q_lens)) > 1:
            return super().attention(q_THD, cache_NP2KD, prepared, spec, sinks_H, distance_bias_HX=distance_bias_HX)
        return padded_attention(q_THD, cache_NP2KD, batch, spec, ScoreTerms(sinks_H, distance_bias_HX))

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
    if spec.soft_cap is not None:
        scores_BKGQC = torch.tanh(scores_BKGQC / spec.soft_cap) * spec.soft_cap
    positions_BQ = batch.kv_lens_B.long()[:, None] - q_len + torch.arange(q_len, device=device)
    positions_C = torch.arange(keys_BCKD.shape[1], device=device)
    distances_BQC = positions_BQ[:, :, None] - positions_C
    hidden_BQC = distances_BQC < 0
    if batch.window is not None:
        hidden_BQC |= distances_BQC >= batch.window
    if spec.chunk is not None:
        hidden_BQC |= positions_C < (positions_BQ // spec.chunk * spec.chunk)[:, :, None]
    shape = (spec.num_kv_heads, -1, rows, *distances_BQC.shape[1:])
    if spec.alibi_slopes is not None:
        slopes_H = torch.tensor(spec.alibi_slopes, device=device)
        bias_HBQC = -slopes_H[:, None, None, None] * distances_BQC
        scores_BKGQC = scores_BKGQC + bias_HBQC.view(shape).movedim(2, 0)
    if terms.distance_bias_HX is not None:
        last = terms.distance_bias_HX.shape[1] - 1
        bias_HBQC = terms.distance_bias_HX.float()[:, distances_BQC.clamp(0, last)]
        scores_BKGQC = scores_BKGQC + bias_HBQC.view(shape).movedim(2, 0)
    scores_BKGQC = scores_BKGQC.masked_fill(hidden_BQC[:, None, None], float("-inf"))
    if terms.sinks_H is not None:
        sinks_KG11 = terms.sinks_H.float().view(spec.num_kv_heads, -1, 1, 1)
        sinks_BKGQ1 = sinks_KG11.expand(rows, -1, -1, q_len, 1)
        weights_BKGQC = torch.cat((scores_BKGQC, sinks_BKGQ1), dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights_BKGQC = scores_BKGQC.softmax(dim=-1)
    output_BQKGD = torch.einsum("bkgqc,bckd->bqkgd", weights_BKGQC, values_BCKD.float())
    return output_BQKGD.to(q_THD.dtype).reshape(len(q_THD), spec.num_heads, -1)
