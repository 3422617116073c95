"""The contract's operations on an NVIDIA GPU."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec
from tgi_core.contract.kernels import PreparedAttention
from tgi_cuda.attention.provider import PrefillAttention, PreparedPrefill
from tgi_triton import TritonKernels, Tuning, cuda_tuning
from tgi_triton.attention import PreparedBatch, attend_decodes


class CudaKernels(TritonKernels):
    """Triton's kernels with the tuning of this GPU; linears of many rows are cuBLAS's.

    Args:
        device: the GPU.
        tuning: of the kernels; see ``gpu_tuning``.
        prefill: another library's attention for prefill rows; None for our own.
        notes: said at start.
    """

    def __init__(
        self,
        device: torch.device,
        tuning: Tuning,
        prefill: PrefillAttention | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(device, tuning)
        self._prefill = prefill
        self._notes = notes
        # float32 means float32: TF32 would keep ten bits of a product's operands.
        torch.backends.cuda.matmul.allow_tf32 = False
        # Sums of 16-bit products stay in float32, as the contract says.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    @property
    def notes(self) -> tuple[str, ...]:
        return self._notes

    def prepare_attention(self, batch: AttentionBatch, spec: AttentionSpec) -> PreparedAttention:
        prepared: PreparedBatch = super().prepare_attention(batch, spec)
        if self._prefill is None or not prepared.prefill_tokens:
            return prepared
        return _SharedStep(prepared, self._prefill.prepare(batch, spec))

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
        if self._prefill is None or not isinstance(prepared, _SharedStep):
            return super().attention(q_THD, cache_NP2KD, prepared, spec, sinks_H, distance_bias_HX=distance_bias_HX)
        decodes = prepared.step.batch.num_decodes
        prefill_THD = self._prefill.attend(q_THD[decodes:], cache_NP2KD, prepared.prefill, spec)
        if not decodes:
            return prefill_THD
        output_THD = torch.empty_like(q_THD)
        attend_decodes(q_THD, cache_NP2KD, output_THD, prepared.step, spec, self._tuning)
        output_THD[decodes:] = prefill_THD
        return output_THD


class _SharedStep(NamedTuple):
    """A step whose prefill rows are a provider's."""

    step: PreparedBatch
    prefill: PreparedPrefill


def gpu_tuning(device: torch.device) -> Tuning:
    """The tuning of this GPU."""
    properties = torch.cuda.get_device_properties(device)
    return cuda_tuning(properties.major, properties.minor, properties.multi_processor_count)
