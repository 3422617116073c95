"""flash-attn-4: FlashAttention for Hopper and Blackwell, compiled when it is first called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec, AttentionUse, Device
from tgi_core.shards.attention_providers import (
    Obstacle,
    PrefillAttention,
    Provider,
    has_module,
    installed_version,
    unfit_model,
)

_HEAD_DIMS = {9: (64, 96, 128, 192, 256), 10: (64, 96, 128)}
"""By the major compute capability. 256 on Blackwell has more variants of code than can be compiled before serving."""

_MOST_HEADS_A_KEY_HEAD = 128

_VARIANTS = ((1, 1), (1, 160), (257, 1))
"""Rows and queries of each that between them reach all code a model may need: the library compiles anew for steps whose
queries, times the query heads of a key head, are at most 128, and for more than 256 rows."""


class FlashAttention4(Provider[tuple[int, int]]):
    """Paged prefill on compute capability 9.0 and 10.x."""

    name = "flash-attn-4"
    distribution = "flash-attn-4"

    def missing(self) -> Obstacle | None:
        # Its module lies in a namespace that flash-attn 2 shares.
        if not installed_version(self.distribution):
            return Obstacle("flash-attn-4 is not installed", 'Install it: pip install "tgi-serve[cuda-fa4]".')
        if not has_module("cutlass"):
            return Obstacle(
                "the CUTLASS DSL that it needs is not installed", "Install it: pip install nvidia-cutlass-dsl."
            )
        return None

    def unfit(self, hardware: tuple[int, int], use: AttentionUse) -> Obstacle | None:
        major, minor = hardware
        if major not in _HEAD_DIMS:
            return Obstacle(f"it reads a paged cache on compute capability 9.0 and 10.x only, not on {major}.{minor}")
        if any(spec.num_heads > _MOST_HEADS_A_KEY_HEAD * spec.num_kv_heads for spec in use.specs):
            return Obstacle(f"it takes at most {_MOST_HEADS_A_KEY_HEAD} query heads a key head")
        return unfit_model(use, _HEAD_DIMS[major])

    def open(self, device: Device, use: AttentionUse) -> PrefillAttention:  # noqa: ARG002 - it needs neither
        from flash_attn.cute import flash_attn_varlen_func

        return FlashAttention4Prefill(flash_attn_varlen_func)


class _Prefill(NamedTuple):
    """int32 on the device: where rows begin, tokens in the cache, block tables."""

    starts_B: Tensor
    kv_lens_B: Tensor
    tables_BM: Tensor


class FlashAttention4Prefill(PrefillAttention):
    """Calls ``flash_attn.cute.flash_attn_varlen_func``.

    Args:
        varlen_func: that function.
    """

    def __init__(self, varlen_func: Callable[..., Any]) -> None:
        self._varlen_func = varlen_func
        self._compiled: set[AttentionSpec] = set()

    def prepare(self, batch: AttentionBatch, spec: AttentionSpec) -> _Prefill:  # noqa: ARG002 - equal for all specs
        first = batch.num_decodes
        starts_B = (batch.q_starts_B[first:] - first).int()
        return _Prefill(starts_B, batch.kv_lens_B[first:], batch.block_tables_BM[first:])

    def attend(self, q_THD: Tensor, cache_NP2KD: Tensor, prepared: _Prefill, spec: AttentionSpec) -> Tensor:
        if spec not in self._compiled:
            # The first call is warm-up's: what a later step may need is compiled here, before requests wait for it.
            self._compiled.add(spec)
            for rows, q_len in _VARIANTS:
                self._call(*_variant(q_THD, cache_NP2KD, rows, q_len), spec)
        return self._call(q_THD, cache_NP2KD, prepared, spec)

    def _call(self, q_THD: Tensor, cache_NP2KD: Tensor, prepared: _Prefill, spec: AttentionSpec) -> Tensor:
        # The longest lengths are not given: they would only make it compile the same code once more.
        output_THD, *_ = self._varlen_func(
            q_THD,
            cache_NP2KD[:, :, 0],
            cache_NP2KD[:, :, 1],
            cu_seqlens_q=prepared.starts_B,
            seqused_k=prepared.kv_lens_B,
            page_table=prepared.tables_BM,
            softmax_scale=spec.scale,
            causal=True,
            window_size=(None, None) if spec.window is None else (spec.window - 1, 0),
        )
        result: Tensor = output_THD
        return result


def _variant(q_THD: Tensor, cache_NP2KD: Tensor, rows: int, q_len: int) -> tuple[Tensor, Tensor, _Prefill]:
    """A call over the first block alone."""
    device = q_THD.device
    columns = -(-q_len // cache_NP2KD.shape[1])
    return (
        q_THD.new_zeros((rows * q_len, *q_THD.shape[1:])),
        cache_NP2KD,
        _Prefill(
            torch.arange(0, rows * q_len + 1, q_len, dtype=torch.int32, device=device),
            torch.full((rows,), q_len, dtype=torch.int32, device=device),
            torch.zeros((rows, columns), dtype=torch.int32, device=device),
        ),
    )
