"""The operations of intel-extension-for-pytorch 2.8, its last release, for machines that stay on torch 2.8."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec
from tgi_core.reference import ReferenceKernels


class IpexKernels(ReferenceKernels):
    """Its fused norms and activations, and its paged attention for decodes.

    Prefill rows are the reference's: the library's ``flash_attn_varlen_func`` takes no window and no cache that holds
    keys and values side by side.

    Args:
        llm: the module ``intel_extension_for_pytorch.llm``.
        pages: use the paged attention.
    """

    def __init__(self, llm: Any, *, pages: bool = True) -> None:
        self._functional = llm.functional
        self._paged = llm.modules.PagedAttention
        self._pages = pages

    @property
    def notes(self) -> tuple[str, ...]:
        if not self._pages:
            return ("the paged attention of intel-extension-for-pytorch gives other numbers here and is not used",)
        return ("only decodes attend through intel-extension-for-pytorch, prompts through the slower reference",)

    def supports(self, operation: str, spec: AttentionSpec) -> bool:
        # It refuses a soft cap within a window.
        takes = {"a soft cap"} if spec.window is None else set()
        return operation != "attention" or (self._pages and spec.features <= takes)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        if offset:
            return super().rms_norm(x, weight, eps, offset)
        normed: Tensor = self._functional.rms_norm(x.contiguous(), weight, eps)
        return normed

    def add_rms_norm(
        self, x_TE: Tensor, residual_TE: Tensor, weight_E: Tensor, eps: float, offset: float
    ) -> tuple[Tensor, Tensor]:
        if offset:
            return super().add_rms_norm(x_TE, residual_TE, weight_E, eps, offset)
        return self._functional.add_rms_norm(residual_TE, x_TE, weight_E, None, eps, add_back=True), residual_TE

    def activation_mul(self, x_T2F: Tensor, activation: str) -> Tensor:
        if activation != "silu":
            return super().activation_mul(x_T2F, activation)
        gate_TF, up_TF = x_T2F.chunk(2, dim=-1)
        result_TF: Tensor = self._functional.silu_mul(gate_TF, up_TF)
        return result_TF

    def attention(
        self,
        q_THD: Tensor,
        cache_NP2KD: Tensor,
        prepared: AttentionBatch,
        spec: AttentionSpec,
        sinks_H: Tensor | None = None,  # noqa: ARG002 - refused by ``supports``
        *,
        distance_bias_HX: Tensor | None = None,  # noqa: ARG002 - likewise
    ) -> Tensor:
        decodes = prepared.num_decodes
        output_THD = torch.empty_like(q_THD)
        if decodes:
            self._attend_decodes(q_THD[:decodes], cache_NP2KD, output_THD[:decodes], prepared, spec)
        if decodes < len(prepared.q_lens):
            prefill = prepared._replace(
                q_lens=prepared.q_lens[decodes:],
                kv_lens=prepared.kv_lens[decodes:],
                num_decodes=0,
                q_starts_B=prepared.q_starts_B[decodes:] - decodes,
                kv_lens_B=prepared.kv_lens_B[decodes:],
                block_tables_BM=prepared.block_tables_BM[decodes:],
                slot_mapping_T=prepared.slot_mapping_T[decodes:],
            )
            output_THD[decodes:] = super().attention(q_THD[decodes:], cache_NP2KD, prefill, spec)
        return output_THD

    def _attend_decodes(
        self, q_BHD: Tensor, cache_NP2KD: Tensor, output_BHD: Tensor, batch: AttentionBatch, spec: AttentionSpec
    ) -> None:
        decodes = batch.num_decodes
        heads_H = torch.arange(spec.num_heads, dtype=torch.int32, device=q_BHD.device)
        self._paged.single_query_cached_kv_attention(
            output_BHD,
            q_BHD.contiguous(),
            # Blocks of [K, P, D]: views, nothing is copied.
            cache_NP2KD[:, :, 0].transpose(1, 2),
            cache_NP2KD[:, :, 1].transpose(1, 2),
            heads_H // (spec.num_heads // spec.num_kv_heads),
            spec.scale,
            batch.block_tables_BM[:decodes].contiguous(),
            batch.kv_lens_B[:decodes],
            batch.block_size,
            max(batch.kv_lens[:decodes]),
            None,
            -1 if spec.window is None else spec.window,
            1.0,
            1.0,
            -1.0 if spec.soft_cap is None else spec.soft_cap,
        )


def open_ipex(device: torch.device) -> IpexKernels:
    """The kernels on this device; the paged attention only where it agrees with the reference.

    Builds for GPUs had other cache layouts over time, and a wrong one shows in nothing but the numbers.
    """
    from intel_extension_for_pytorch import llm

    kernels = IpexKernels(llm)
    return kernels if agrees(kernels, device) else IpexKernels(llm, pages=False)


def agrees(kernels: ReferenceKernels, device: torch.device) -> bool:
    """Whether the kernels' decodes are the reference's, on a small random cache."""
    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=64, scale=0.125)
    generator = torch.Generator().manual_seed(0)
    cache_NP2KD = torch.randn(4, 16, 2, 2, 64, generator=generator).to(device)
    q_BHD = torch.randn(2, 4, 64, generator=generator).to(device)
    batch = AttentionBatch(
        q_lens=[1, 1],
        kv_lens=[20, 3],
        num_decodes=2,
        q_starts_B=torch.arange(3, device=device),
        kv_lens_B=torch.tensor([20, 3], dtype=torch.int32, device=device),
        block_tables_BM=torch.tensor([[3, 1], [2, 0]], dtype=torch.int32, device=device),
        slot_mapping_T=torch.tensor([20, 34], device=device),
        block_size=16,
        window=None,
    )
    expected_BHD = ReferenceKernels().attention(q_BHD, cache_NP2KD, batch, spec)
    try:
        actual_BHD = kernels.attention(q_BHD, cache_NP2KD, batch, spec)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
    return bool((actual_BHD - expected_BHD).abs().max() < 1e-4)
