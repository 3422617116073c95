"""Attention of rows with one query each over the paged cache, split along the keys.

Each program takes all query heads of one key head, so that keys are read once, and a share of the row's keys. The
program that comes last for a row and key head puts the shares together ("flash decoding", Dao et al. 2023, without its
second launch). Lengths are read on the device: the launch depends on nothing but the number of rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.contract import AttentionSpec
from tgi_triton.device_code import INTERPRETED, gdc_launch_dependents, gdc_wait, launch_options, next_power_of_2
from tgi_triton.online_softmax import (
    HeadTerms,
    accumulate,
    combine_shares,
    leave_share,
    score_factors,
    sharpness,
    sink_weights,
    tile_scores,
)
from tgi_triton.paged import cache_descriptor, load_tile
from tgi_triton.tuning import Tuning

_MAX_SPLITS = 32
_SMALLEST_DOT = 16
"""Matrix units take tiles of at least this many rows; fewer query heads are padded."""


class DecodeScratch(NamedTuple):
    """Where splits leave their shares: [rows * K * splits, heads, D] and [.., 2, heads] float32, and arrivals.

    ``arrivals_X`` counts the programs that are done with a row and key head; it is all zeros between launches.
    """

    splits: int
    sums: Tensor
    statistics: Tensor
    arrivals_X: Tensor


def choose_splits(num_rows: int, num_kv_heads: int, programs: int) -> int:
    """Shares of a row's keys, so that at least ``programs`` programs exist."""
    return min(_MAX_SPLITS, triton.cdiv(programs, num_rows * num_kv_heads))


def make_scratch(num_rows: int, spec: AttentionSpec, tuning: Tuning, arrivals_X: Tensor) -> DecodeScratch:
    """Scratch for a launch over ``num_rows`` rows."""
    splits = choose_splits(num_rows, spec.num_kv_heads, tuning.programs)
    if splits == 1:
        # Nothing is left anywhere; the kernel still wants pointers of the right type.
        unused = arrivals_X.view(torch.float32)
        return DecodeScratch(1, unused, unused, arrivals_X)
    shares, heads = num_rows * spec.num_kv_heads * splits, _padded_heads(spec)
    device = arrivals_X.device
    return DecodeScratch(
        splits,
        torch.empty((shares, heads, next_power_of_2(spec.head_dim)), dtype=torch.float32, device=device),
        torch.empty((shares, 2, heads), dtype=torch.float32, device=device),
        arrivals_X,
    )


@triton.jit(do_not_specialize=["table_stride"])
def _decode_kernel(
    q_ptr,
    cache_ptr,
    cache_descriptor,
    output_ptr,
    tables_ptr,
    kv_lens_ptr,
    sums_ptr,
    statistics_ptr,
    arrivals_ptr,
    slopes_ptr,
    sinks_ptr,
    table_stride,
    score_scale,
    soft_cap,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    ALIBI: tl.constexpr,
    SINKS: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
    UPCAST: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    row = tl.program_id(2).to(tl.int64)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    kv_len = tl.load(kv_lens_ptr + row)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(0, kv_len - WINDOW)
    first_tile = first // TILE
    num_tiles = tl.cdiv(kv_len, TILE) - first_tile
    tiles_a_split = tl.cdiv(num_tiles, splits)
    begin = split * tiles_a_split
    if begin >= num_tiles:
        return
    end = tl.minimum(begin + tiles_a_split, num_tiles)

    heads = tl.arange(0, HEADS)
    columns = tl.arange(0, BLOCK_D)
    inside_q = (heads < GROUP)[:, None] & (columns < HEAD_DIM)[None, :]
    q_offsets = ((row * NUM_KV_HEADS + kv_head) * GROUP + heads)[:, None] * HEAD_DIM + columns[None, :]
    q = tl.load(q_ptr + q_offsets, mask=inside_q, other=0.0)
    table_ptr = tables_ptr + row * table_stride
    highest = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    sums = tl.zeros([HEADS, BLOCK_D], tl.float32)
    factor = sharpness(score_scale, SOFT_CAP)
    if ALIBI:
        slopes = tl.load(slopes_ptr + kv_head * GROUP + heads, mask=heads < GROUP, other=0.0)
    for tile in range(first_tile + begin, first_tile + end):
        positions = tile * TILE + tl.arange(0, TILE)
        visible = (positions < kv_len) & (positions >= first)
        keys, values = load_tile(
            cache_ptr,
            cache_descriptor,
            table_ptr,
            tile,
            kv_len,
            kv_head,
            NUM_KV_HEADS,
            HEAD_DIM,
            BLOCK_D,
            BLOCK_SIZE,
            TILE,
            True,
            DESCRIPTOR,
        )
        scores = tile_scores(q, keys, score_scale, soft_cap, SOFT_CAP, UPCAST)
        if ALIBI:
            scores += slopes[:, None] * (positions - (kv_len - 1)).to(tl.float32)[None, :]
        scores = tl.where(visible[None, :], scores, float("-inf"))
        sums, highest, total = accumulate(sums, highest, total, scores, values, factor, False, UPCAST)

    used = tl.cdiv(num_tiles, tiles_a_split)
    if used > 1:
        place = row * NUM_KV_HEADS + kv_head
        # All threads have stored before the one that counts releases.
        leave_share(sums_ptr, statistics_ptr, place * splits + split, sums, highest, total, HEADS, BLOCK_D)
        if tl.atomic_add(arrivals_ptr + place, 1) < used - 1:
            return
        tl.store(arrivals_ptr + place, 0)
        # Under names of their own: some compilers cannot join tensors where a path has returned.
        all_sums, all_highest, all_total = combine_shares(
            sums_ptr, statistics_ptr, place * splits, used, factor, HEADS, BLOCK_D
        )
        if SINKS:
            all_total += sink_weights(sinks_ptr, kv_head * GROUP + heads, heads < GROUP, all_highest, factor)
        tl.store(output_ptr + q_offsets, (all_sums / all_total[:, None]).to(q.dtype), mask=inside_q)
        return
    if SINKS:
        total += sink_weights(sinks_ptr, kv_head * GROUP + heads, heads < GROUP, highest, factor)
    tl.store(output_ptr + q_offsets, (sums / total[:, None]).to(q.dtype), mask=inside_q)


def decode_attention(
    q_BHD: Tensor,
    cache_NP2KD: Tensor,
    output_BHD: Tensor,
    block_tables_BM: Tensor,
    kv_lens_B: Tensor,
    scratch: DecodeScratch,
    spec: AttentionSpec,
    tuning: Tuning,
    terms: HeadTerms,
) -> None:
    """Attention of ``len(q_BHD)`` rows with one query each; see ``Kernels.attention``."""
    block_d = next_power_of_2(spec.head_dim)
    tile = tile_tokens(tuning.decode_tile_bytes, block_d, q_BHD.element_size())
    descriptor, has_descriptor = cache_descriptor(cache_NP2KD, tile, wanted=tuning.decode_descriptors)
    _decode_kernel[(spec.num_kv_heads, scratch.splits, len(q_BHD))](
        q_BHD,
        cache_NP2KD,
        descriptor,
        output_BHD,
        block_tables_BM,
        kv_lens_B,
        scratch.sums,
        scratch.statistics,
        scratch.arrivals_X,
        q_BHD if terms.slopes_H is None else terms.slopes_H,
        q_BHD if terms.sinks_H is None else terms.sinks_H,
        block_tables_BM.stride(0),
        *score_factors(spec),
        NUM_KV_HEADS=spec.num_kv_heads,
        GROUP=spec.num_heads // spec.num_kv_heads,
        HEADS=_padded_heads(spec),
        HEAD_DIM=spec.head_dim,
        BLOCK_D=block_d,
        BLOCK_SIZE=cache_NP2KD.shape[1],
        TILE=tile,
        WINDOW=spec.window or 0,
        SOFT_CAP=spec.soft_cap is not None,
        ALIBI=terms.slopes_H is not None,
        SINKS=terms.sinks_H is not None,
        DESCRIPTOR=has_descriptor,
        UPCAST=INTERPRETED,
        DEPENDENT=tuning.dependent_launch,
        # float32 takes twice the registers.
        num_warps=tuning.decode_warps * max(1, q_BHD.element_size() // 2),
        num_stages=tuning.decode_stages,
        **launch_options(tuning.dependent_launch),
    )


def tile_tokens(tile_bytes: int, block_d: int, item_bytes: int) -> int:
    """Tokens whose keys fill ``tile_bytes``, at least what a matrix unit takes and at most 128."""
    return min(128, max(_SMALLEST_DOT, tile_bytes // (block_d * item_bytes)))


def _padded_heads(spec: AttentionSpec) -> int:
    return max(_SMALLEST_DOT, next_power_of_2(spec.num_heads // spec.num_kv_heads))
