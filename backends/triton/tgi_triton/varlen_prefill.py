"""Prefill through a function with the signature of flash-attn's ``flash_attn_varlen_func`` over a block table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec, AttentionUse, Device
from tgi_core.shards.attention_providers import HardwareT, Obstacle, PrefillAttention, Provider, has_module


class _Prefill(NamedTuple):
    """int32 on the device: where rows begin among queries and keys, how many keys they have, block tables; on the host:
    the longest of each."""

    q_starts_B: Tensor
    kv_starts_B: Tensor
    kv_lens_B: Tensor
    tables_BM: Tensor
    longest_q: int
    longest_kv: int


class VarlenPrefill(PrefillAttention):
    """Calls the function once a layer.

    Args:
        varlen_func: that function.
        least_q: steps of shorter chunks are told to have one of this many queries, which some libraries compile
            other code for.
    """

    def __init__(self, varlen_func: Callable[..., Any], *, least_q: int = 1) -> None:
        self._varlen_func = varlen_func
        self._least_q = least_q

    def prepare(self, batch: AttentionBatch, spec: AttentionSpec) -> _Prefill:  # noqa: ARG002 - equal for all specs
        first = batch.num_decodes
        kv_lens_B = batch.kv_lens_B[first:]
        kv_starts_B = kv_lens_B.new_zeros(len(kv_lens_B) + 1)
        torch.cumsum(kv_lens_B, 0, dtype=torch.int32, out=kv_starts_B[1:])
        return _Prefill(
            q_starts_B=(batch.q_starts_B[first:] - first).int(),
            kv_starts_B=kv_starts_B,
            kv_lens_B=kv_lens_B,
            tables_BM=batch.block_tables_BM[first:],
            longest_q=max(self._least_q, *batch.q_lens[first:]),
            longest_kv=max(batch.kv_lens[first:]),
        )

    def attend(self, q_THD: Tensor, cache_NP2KD: Tensor, prepared: _Prefill, spec: AttentionSpec) -> Tensor:
        output_THD: Tensor = self._varlen_func(
            q_THD,
            cache_NP2KD[:, :, 0],
            cache_NP2KD[:, :, 1],
            cu_seqlens_q=prepared.q_starts_B,
            cu_seqlens_k=prepared.kv_starts_B,
            max_seqlen_q=prepared.longest_q,
            max_seqlen_k=prepared.longest_kv,
            softmax_scale=spec.scale,
            causal=True,
            window_size=(-1, -1) if spec.window is None else (spec.window - 1, 0),
            block_table=prepared.tables_BM,
        )
        return output_THD


class VllmVarlenPrefill(VarlenPrefill):
    """The same in vLLM's form, which asks for lengths of keys instead of where they begin."""

    def attend(self, q_THD: Tensor, cache_NP2KD: Tensor, prepared: _Prefill, spec: AttentionSpec) -> Tensor:
        output_THD: Tensor = self._varlen_func(
            q_THD,
            cache_NP2KD[:, :, 0],
            cache_NP2KD[:, :, 1],
            max_seqlen_q=prepared.longest_q,
            cu_seqlens_q=prepared.q_starts_B,
            max_seqlen_k=prepared.longest_kv,
            seqused_k=prepared.kv_lens_B,
            softmax_scale=spec.scale,
            causal=True,
            window_size=None if spec.window is None else [spec.window - 1, 0],
            block_table=prepared.tables_BM,
            out=torch.empty_like(q_THD),
        )
        return output_THD


class FlashAttention2(Provider[HardwareT]):
    """flash-attn 2.x: the same package for every vendor, each with limits of its own. ``unfit`` tells them."""

    name = "flash-attn"
    distribution = "flash-attn"

    def missing(self) -> Obstacle | None:
        # The compiled half: ``flash_attn`` itself may be there with flash-attn-4 alone, or with a variant in Triton.
        if has_module("flash_attn_2_cuda"):
            return None
        return Obstacle(
            "flash-attn 2 is not installed, or not with its compiled kernels",
            'Install it: pip install --no-build-isolation "tgi-serve[flash-attn]".',
        )

    def open(self, device: Device, use: AttentionUse) -> PrefillAttention:  # noqa: ARG002 - it needs neither
        from flash_attn import flash_attn_varlen_func

        return VarlenPrefill(flash_attn_varlen_func)


def unfit_blocks(use: AttentionUse, multiple: int) -> Obstacle | None:
    """Blocks that a library does not page by: it wants multiples of some size."""
    if not use.block_size % multiple:
        return None
    return Obstacle(
        f"it needs KV blocks of {multiple} tokens, and they have {use.block_size}", f"Use --block-size {multiple}."
    )
