"""The operations on a TPU: the padded reference, weights divided among devices, and attention by Pallas."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec
from tgi_core.contract.experts import PackedExperts
from tgi_core.contract.kernels import Division, PackedWeight, PreparedAttention
from tgi_core.reference.padded import PaddedKernels
from tgi_tpu.device import TpuDevice
from tgi_tpu.programs import one_program_each
from tgi_tpu.ragged import RAGGED_ATTENTION, attend


class MergedWeight(NamedTuple):
    """Weights with the same inputs, each divided among the devices along its outputs."""

    parts: tuple[Tensor, ...]


class Pages(NamedTuple):
    """What the layers of a KV group share in a step; int32."""

    kv_lens_B: Tensor
    block_tables_BM: Tensor
    q_starts_B: Tensor


@one_program_each
class TpuKernels(PaddedKernels):
    """Shapes never depend on values.

    Args:
        device: where weights go.
        pallas: attention is jax's Pallas kernel, whose caches are [N, P, 2K, D]; else the padded reference.
    """

    def __init__(self, device: TpuDevice, *, pallas: bool) -> None:
        self.executor = device.executor
        self._pallas = pallas
        self.executor.own[RAGGED_ATTENTION] = partial(attend, mesh=self.executor.mesh)

    # -- linears ------------------------------------------------------------------------------------------------------

    def pack_divided(self, weight_NK: Tensor, division: Division) -> PackedWeight:
        if division.inputs:
            return self.executor.divide(weight_NK, 1)
        if len(self.executor.devices) == 1 or not division.parts:
            return weight_NK
        parts = tuple(self.executor.divide(part, 0) for part in torch.split(weight_NK, list(division.parts)))
        return parts[0] if len(parts) == 1 else MergedWeight(parts)

    def pack_experts(self, weight_XNK: Tensor) -> PackedExperts:
        return [self.executor.divide(weight_NK, 0) for weight_NK in weight_XNK]

    def linear(self, x_TK: Tensor, weight: PackedWeight, bias_N: Tensor | None) -> Tensor:
        if isinstance(weight, MergedWeight):
            return torch.cat(self._outputs(x_TK, weight, bias_N), dim=-1)
        return F.linear(x_TK, weight, bias_N)

    def _outputs(self, x_TK: Tensor, weight: MergedWeight, bias_N: Tensor | None) -> list[Tensor]:
        sizes = [len(part) for part in weight.parts]
        biases = [None] * len(sizes) if bias_N is None else torch.split(bias_N, sizes)
        return [F.linear(x_TK, part, bias) for part, bias in zip(weight.parts, biases, strict=True)]

    # -- cache --------------------------------------------------------------------------------------------------------

    def cache_shape(self, spec: AttentionSpec, blocks: int, block_size: int) -> tuple[int, ...]:
        if self._pallas:
            return (blocks, block_size, 2 * spec.num_kv_heads, spec.head_dim)
        return super().cache_shape(spec, blocks, block_size)

    def write_kv(self, kv_TKD: tuple[Tensor, ...], cache_NP2KD: Tensor, slot_mapping_T: Tensor) -> None:
        if cache_NP2KD.dim() == 4:
            kv_TXD = torch.stack(kv_TKD, dim=2).flatten(1, 2)
            cache_NP2KD.flatten(0, 1).index_copy_(0, slot_mapping_T, kv_TXD)
        else:
            super().write_kv(kv_TKD, cache_NP2KD, slot_mapping_T)

    # -- attention ----------------------------------------------------------------------------------------------------

    def prepare_attention(self, batch: AttentionBatch, spec: AttentionSpec) -> PreparedAttention:
        if not self._pallas:
            return super().prepare_attention(batch, spec)
        # What pads a row counts as its last tokens, which may lie behind its table.
        columns = -(-(max(batch.q_lens) - 1) // batch.block_size)
        return Pages(batch.kv_lens_B, F.pad(batch.block_tables_BM, (0, columns)), batch.q_starts_B)

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
        if not isinstance(prepared, Pages):
            return super().attention(q_THD, cache_NP2KD, prepared, spec, sinks_H, distance_bias_HX=distance_bias_HX)
        pages_NPXD = cache_NP2KD if cache_NP2KD.dim() == 4 else cache_NP2KD.transpose(2, 3).flatten(2, 3)
        spread = (*prepared, spec.scale, spec.window, spec.soft_cap)
        output_THD: Tensor = RAGGED_ATTENTION(q_THD, pages_NPXD, *spread)
        return output_THD
