"""The operations that the SDK has in one piece; everything else is core's for static shapes."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec
from tgi_core.contract.kernels import PackedWeight, PreparedAttention
from tgi_core.reference.padded import PaddedKernels
from tgi_gaudi.attention import FusedPrefill, flat_decode
from tgi_gaudi.linears import Linears


class GaudiKernels(PaddedKernels):
    """Fused attention for prompts, flat paged attention for decodes, fused norms and rotary embedding.

    A recorded graph changes no view of what lies outside of it, the vendor says; so nothing here does.

    Attributes:
        linears: how linears multiply; to be changed before there are weights.
    """

    def __init__(self) -> None:
        from habana_frameworks.torch.hpex.kernels import RotaryPosEmbeddingMode, apply_rotary_pos_emb
        from habana_frameworks.torch.hpex.normalization import FusedRMSNorm

        self.linears = Linears()
        self._prefill = FusedPrefill()
        self._rms_norm = FusedRMSNorm
        self._rotate = apply_rotary_pos_emb
        # Pairs feature i with i + R.
        self._rotary_mode = RotaryPosEmbeddingMode.BLOCKWISE

    def pack_linear(self, weight_NK: Tensor) -> PackedWeight:
        return self.linears.pack(weight_NK)

    def linear(self, x_TK: Tensor, weight: PackedWeight, bias_N: Tensor | None) -> Tensor:
        return self.linears.apply(x_TK, weight, bias_N)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        if offset or weight.dtype is not x.dtype:
            return super().rms_norm(x, weight, eps, offset)
        # It takes three dimensions or more.
        normed: Tensor = self._rms_norm.apply(x[None], weight, eps)
        return normed[0]

    def rope(self, x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
        width = 2 * cos_TR.shape[-1]
        cos_T1D, sin_T1D = (torch.cat((table_TR, table_TR), dim=-1)[:, None] for table_TR in (cos_TR, sin_TR))
        # In the tables' type, float32; the position and the offset in the tables are theirs already.
        rotated_THD = self._rotate(x_THD[..., :width].float(), cos_T1D, sin_T1D, None, 0, self._rotary_mode)
        rotated_THD = rotated_THD.to(x_THD.dtype)
        return rotated_THD if width == x_THD.shape[-1] else torch.cat((rotated_THD, x_THD[..., width:]), dim=-1)

    def write_kv(self, kv_TKD: tuple[Tensor, ...], cache_NP2KD: Tensor, slot_mapping_T: Tensor) -> None:
        block_size = cache_NP2KD.shape[1]
        places = (slot_mapping_T // block_size, slot_mapping_T % block_size)
        cache_NP2KD.index_put_(places, torch.stack(kv_TKD, dim=1))

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
        if not spec.features and batch.flat is not None:
            return flat_decode(q_THD, cache_NP2KD, batch, batch.flat, spec)
        if not spec.features and len(set(batch.q_lens)) == 1 and batch.q_lens[0] > 1:
            return self._prefill(q_THD, cache_NP2KD, batch, spec)
        return super().attention(q_THD, cache_NP2KD, prepared, spec, sinks_H, distance_bias_HX=distance_bias_HX)

    def advance_tables(self, tokens_SL: Tensor, lengths_S: Tensor, slots_B: Tensor, ids_B: Tensor) -> None:
        positions_B = lengths_S.index_select(0, slots_B)
        tokens_SL.index_put_((slots_B, positions_B.long()), ids_B.to(tokens_SL.dtype))
        # The scratch row's length stays 1.
        is_scratch_B = slots_B == len(lengths_S) - 1
        lengths_S.index_copy_(0, slots_B, torch.where(is_scratch_B, 1, positions_B + 1).to(lengths_S.dtype))
