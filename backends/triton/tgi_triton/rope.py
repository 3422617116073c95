"""Head norms, rotary embedding and the KV write of a merged projection in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.contract import AttentionSpec
from tgi_core.contract.kernels import HeadNorms
from tgi_triton.device_code import gdc_launch_dependents, gdc_wait, launch_options, next_power_of_2

_HEADS = 16
"""Heads of a program."""


@triton.jit
def _norm_weight(q_norm_ptr, k_norm_ptr, is_q, columns, inside, offset):
    """The norms' weights [heads, columns], query and key heads each with their own."""
    q_norm = tl.load(q_norm_ptr + columns, mask=inside, other=0.0).to(tl.float32) + offset
    k_norm = tl.load(k_norm_ptr + columns, mask=inside, other=0.0).to(tl.float32) + offset
    return tl.where(is_q[:, None], q_norm[None, :], k_norm[None, :])


@triton.jit
def _normed(x, scale, weight, normalises, dtype: tl.constexpr, OFFSET: tl.constexpr):
    """``x`` normed where ``normalises``, rounded as ``Kernels.rms_norm`` rounds."""
    if OFFSET:
        result = (x * scale * weight).to(dtype).to(tl.float32)
    else:
        result = ((x * scale).to(dtype).to(tl.float32) * weight).to(dtype).to(tl.float32)
    return tl.where(normalises, result, x)


@triton.jit
def _store(x, columns, inside, q_row_ptr, cache_row_ptr, is_q):
    tl.store(q_row_ptr + columns[None, :], x, mask=inside & is_q[:, None])
    tl.store(cache_row_ptr + columns[None, :], x, mask=inside & (is_q == 0)[:, None])


@triton.jit
def _rope_write_kv_kernel(
    qkv_ptr,
    q_norm_ptr,
    k_norm_ptr,
    cos_ptr,
    sin_ptr,
    cache_ptr,
    slot_mapping_ptr,
    q_ptr,
    qkv_stride,
    rotary_stride,
    eps,
    offset,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
    OFFSET: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_q = heads < NUM_HEADS
    turns = (heads < NUM_HEADS + NUM_KV_HEADS)[:, None]
    exists = (heads < NUM_HEADS + 2 * NUM_KV_HEADS)[:, None]
    # A head is two halves that turn into each other and, with a partial rotary embedding, a rest that does not turn.
    halves = tl.arange(0, BLOCK_HALF)
    in_half = halves < HALF
    rest = 2 * HALF + tl.arange(0, BLOCK_REST)
    in_rest = rest < HEAD_DIM
    if NORM:
        first_weight = _norm_weight(q_norm_ptr, k_norm_ptr, is_q, halves, in_half, offset)
        second_weight = _norm_weight(q_norm_ptr, k_norm_ptr, is_q, HALF + halves, in_half, offset)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    inside = exists & in_half[None, :]
    inside_rest = exists & in_rest[None, :]
    row_ptr = qkv_ptr + token * qkv_stride + heads[:, None] * HEAD_DIM
    first = tl.load(row_ptr + halves[None, :], mask=inside, other=0.0).to(tl.float32)
    second = tl.load(row_ptr + HALF + halves[None, :], mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + token * rotary_stride + halves, mask=in_half, other=0.0)[None, :]
    sin = tl.load(sin_ptr + token * rotary_stride + halves, mask=in_half, other=0.0)[None, :]
    entry = tl.load(slot_mapping_ptr + token) * (2 * NUM_KV_HEADS * HEAD_DIM)
    q_row_ptr = q_ptr + (token * NUM_HEADS + heads)[:, None] * HEAD_DIM
    # Keys and values lie in a cache entry as in the projection: K key heads, then K value heads.
    cache_row_ptr = cache_ptr + entry + (heads - NUM_HEADS)[:, None] * HEAD_DIM
    dtype: tl.constexpr = qkv_ptr.dtype.element_ty
    if NORM:
        squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
    if HEAD_DIM > 2 * HALF:
        last = tl.load(row_ptr + rest[None, :], mask=inside_rest, other=0.0).to(tl.float32)
        if NORM:
            squares += tl.sum(last * last, axis=1)
    if NORM:
        scale = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        first = _normed(first, scale, first_weight, turns, dtype, OFFSET)
        second = _normed(second, scale, second_weight, turns, dtype, OFFSET)
    if HEAD_DIM > 2 * HALF:
        if NORM:
            weight = _norm_weight(q_norm_ptr, k_norm_ptr, is_q, rest, in_rest, offset)
            last = _normed(last, scale, weight, turns, dtype, OFFSET)
        _store(last.to(dtype), rest, inside_rest, q_row_ptr, cache_row_ptr, is_q)
    turned_first = tl.where(turns, first * cos - second * sin, first)
    turned_second = tl.where(turns, second * cos + first * sin, second)
    _store(turned_first.to(dtype), halves, inside, q_row_ptr, cache_row_ptr, is_q)
    _store(turned_second.to(dtype), HALF + halves, inside, q_row_ptr, cache_row_ptr, is_q)


def rope_write_kv(
    qkv_TX: Tensor,
    norms: HeadNorms | None,
    spec: AttentionSpec,
    rotary: tuple[Tensor, Tensor],
    cache_NP2KD: Tensor,
    slot_mapping_T: Tensor,
    *,
    dependent: bool,
) -> Tensor:
    """See ``Kernels.norm_rope_write_kv``; queries go into a tensor of their own."""
    tokens = len(qkv_TX)
    q_THD = torch.empty((tokens, spec.num_heads, spec.head_dim), dtype=qkv_TX.dtype, device=qkv_TX.device)
    cos_TR, sin_TR = rotary
    half = cos_TR.shape[1]
    q_norm_D, k_norm_D = (norms.q_norm_D, norms.k_norm_D) if norms is not None else (qkv_TX, qkv_TX)
    offset = norms.offset if norms is not None else 0.0
    if tokens:
        _rope_write_kv_kernel[(tokens, triton.cdiv(spec.num_heads + 2 * spec.num_kv_heads, _HEADS))](
            qkv_TX,
            q_norm_D,
            k_norm_D,
            cos_TR,
            sin_TR,
            cache_NP2KD,
            slot_mapping_T,
            q_THD,
            qkv_TX.stride(0),
            cos_TR.stride(0),
            norms.eps if norms is not None else 0.0,
            offset,
            NUM_HEADS=spec.num_heads,
            NUM_KV_HEADS=spec.num_kv_heads,
            HEAD_DIM=spec.head_dim,
            HALF=half,
            NORM=norms is not None,
            OFFSET=offset != 0,
            HEADS=_HEADS,
            BLOCK_HALF=next_power_of_2(half),
            BLOCK_REST=next_power_of_2(max(1, spec.head_dim - 2 * half)),
            DEPENDENT=dependent,
            num_warps=4,
            **launch_options(dependent),
        )
    return q_THD
