"""What runs faster on a CPU than the reference. Every override was measured; the rest is the reference."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec, Sampled, SampleInputs
from tgi_core.contract.kernels import PackedWeight, PreparedAttention
from tgi_core.reference import ReferenceKernels
from tgi_cpu import attention, linear, sampling


class CpuKernels(ReferenceKernels):
    """oneDNN linears, fused attention, in-place rope, and sampling that sorts only what can be chosen."""

    def __init__(self) -> None:
        self._packs = linear.has_packed_linear()
        self._eps = lru_cache(torch.tensor)

    @property
    def notes(self) -> tuple[str, ...]:
        if self._packs:
            return ()
        return (f"torch {torch.__version__} lacks oneDNN's prepacked linears: bfloat16 runs at about half speed",)

    def supports(self, operation: str, spec: AttentionSpec) -> bool:
        # torch's fused kernel has no place for a soft cap or sinks; a bias for each head needs a mask for each head.
        return operation != "attention" or not spec.features

    def pack_linear(self, weight_NK: Tensor) -> PackedWeight:
        if self._packs and weight_NK.dtype is torch.bfloat16:
            return linear.pack(weight_NK)
        return weight_NK

    def linear(self, x_TK: Tensor, weight: PackedWeight, bias_N: Tensor | None) -> Tensor:
        return linear.linear(x_TK, weight, bias_N)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        x_float = x.float()
        norm = torch.linalg.vector_norm(x_float, dim=-1, keepdim=True)
        size = x.shape[-1]
        # x / sqrt(norm**2 / size + eps) in few operations: each one costs more than the arithmetic in it.
        x_float = x_float * torch.addcmul(self._eps(eps), norm, norm, value=1 / size).rsqrt_()
        if offset:
            return x_float.mul_(weight.float() + offset).to(x.dtype)
        return x_float.to(x.dtype).mul_(weight)

    def add_rms_norm(
        self, x_TE: Tensor, residual_TE: Tensor, weight_E: Tensor, eps: float, offset: float
    ) -> tuple[Tensor, Tensor]:
        residual_TE.add_(x_TE)
        return self.rms_norm(residual_TE, weight_E, eps, offset), residual_TE

    def activation_mul(self, x_T2F: Tensor, activation: str) -> Tensor:
        if activation != "silu":
            return super().activation_mul(x_T2F, activation)
        size = x_T2F.shape[-1] // 2
        return F.silu(x_T2F[:, :size]).mul_(x_T2F[:, size:])

    def rope(self, x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
        """In place."""
        tokens, heads, _ = x_THD.shape
        half = cos_TR.shape[-1]
        pairs_TH2R = x_THD[..., : 2 * half].view(tokens, heads, 2, half)
        x_TH2R = pairs_TH2R.float()
        rotated_TH2R = x_TH2R * cos_TR[:, None, None]
        rotated_TH2R[:, :, 0].addcmul_(x_TH2R[:, :, 1], sin_TR[:, None], value=-1)
        rotated_TH2R[:, :, 1].addcmul_(x_TH2R[:, :, 0], sin_TR[:, None])
        pairs_TH2R.copy_(rotated_TH2R)
        return x_THD

    def rope_write_kv(
        self,
        qkv_TX: Tensor,
        spec: AttentionSpec,
        rotary: tuple[Tensor, Tensor] | None,
        cache_NP2KD: Tensor,
        slot_mapping_T: Tensor,
    ) -> Tensor:
        heads, kv_heads, size = spec.num_heads, spec.num_kv_heads, spec.head_dim
        qkv_THD = qkv_TX.view(len(qkv_TX), heads + 2 * kv_heads, size)
        if rotary is not None:
            self.rope(qkv_THD[:, : heads + kv_heads], *rotary)
        # Keys and values lie side by side in the projection as they do in a cache entry: one copy stores both.
        cache_NP2KD.view(-1, 2 * kv_heads * size).index_copy_(0, slot_mapping_T, qkv_TX[:, heads * size :])
        return qkv_THD[:, :heads]

    def prepare_attention(self, batch: AttentionBatch, spec: AttentionSpec) -> PreparedAttention:  # noqa: ARG002
        return attention.prepare(batch)

    def attention(
        self,
        q_THD: Tensor,
        cache_NP2KD: Tensor,
        prepared: PreparedAttention,
        spec: AttentionSpec,
        sinks_H: Tensor | None = None,  # noqa: ARG002 - not supported
        *,
        distance_bias_HX: Tensor | None = None,  # noqa: ARG002 - not supported
    ) -> Tensor:
        return attention.attend(q_THD, cache_NP2KD, prepared, spec)

    def sample(self, logits_BV: Tensor, inputs: SampleInputs) -> Sampled:
        return sampling.sample(logits_BV, inputs)
