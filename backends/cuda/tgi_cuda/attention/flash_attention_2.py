"""flash-attn 2.x: FlashAttention-2 over a block table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec, AttentionUse, Device
from tgi_cuda.attention.provider import Obstacle, PrefillAttention, Provider, has_module, unfit_model

BLOCK_SIZE = 256
"""The library wants multiples of it."""


class FlashAttention2(Provider):
    """Paged prefill on every GPU of the backend, over large blocks."""

    name = "flash-attn"
    distribution = "flash-attn"

    def missing(self) -> Obstacle | None:
        # The compiled half: ``flash_attn`` itself may be there with flash-attn-4 alone.
        if has_module("flash_attn_2_cuda"):
            return None
        return Obstacle(
            "flash-attn 2 is not installed", 'Install it: pip install --no-build-isolation "tgi-serve[flash-attn]".'
        )

    def unfit(self, capability: tuple[int, int], use: AttentionUse) -> Obstacle | None:  # noqa: ARG002 - 8.0 is enough
        if use.block_size % BLOCK_SIZE:
            return Obstacle(
                f"it needs KV blocks of {BLOCK_SIZE} tokens, and they have {use.block_size}",
                f"Use --block-size {BLOCK_SIZE}.",
            )
        return unfit_model(use, range(8, 257, 8))

    def open(self, device: Device, use: AttentionUse) -> PrefillAttention:  # noqa: ARG002 - it needs neither
        from flash_attn import flash_attn_varlen_func

        return FlashAttention2Prefill(flash_attn_varlen_func)


class _Prefill(NamedTuple):
    """int32 on the device: where rows begin among queries and keys, block tables; on the host: the longest of each."""

    q_starts_B: Tensor
    kv_starts_B: Tensor
    tables_BM: Tensor
    longest_q: int
    longest_kv: int


class FlashAttention2Prefill(PrefillAttention):
    """Calls ``flash_attn.flash_attn_varlen_func``.

    Args:
        varlen_func: that function.
    """

    def __init__(self, varlen_func: Callable[..., Any]) -> None:
        self._varlen_func = varlen_func

    def prepare(self, batch: AttentionBatch, spec: AttentionSpec) -> _Prefill:  # noqa: ARG002 - equal for all specs
        first = batch.num_decodes
        kv_lens_B = batch.kv_lens_B[first:]
        kv_starts_B = kv_lens_B.new_zeros(len(kv_lens_B) + 1)
        torch.cumsum(kv_lens_B, 0, dtype=torch.int32, out=kv_starts_B[1:])
        return _Prefill(
            q_starts_B=(batch.q_starts_B[first:] - first).int(),
            kv_starts_B=kv_starts_B,
            tables_BM=batch.block_tables_BM[first:],
            longest_q=max(batch.q_lens[first:]),
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
