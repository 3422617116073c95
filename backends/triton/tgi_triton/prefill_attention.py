"""Attention of rows with many queries over the paged cache.

A program takes a few neighbouring queries with all query heads of one key head, so that keys are read once for the
whole group. The grid is bounded by the number of tokens and rows; each program finds its row on the device, and
surplus programs leave at once. Source of the form: Dao 2023 (FlashAttention-2) over a block table (Kwon et al. 2023).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from tgi_core.contract import AttentionSpec
from tgi_triton.decode_attention import tile_tokens
from tgi_triton.device_code import INTERPRETED, gdc_launch_dependents, gdc_wait, launch_options, next_power_of_2
from tgi_triton.online_softmax import HeadTerms, accumulate, score_factors, sharpness, sink_weights, tile_scores
from tgi_triton.paged import cache_descriptor, load_tile
from tgi_triton.tuning import Tuning


@triton.jit
def _find_row(q_starts_ptr, base, num_rows, queries_block, QUERIES: tl.constexpr):
    """The last row whose first program does not lie behind this one; a row's programs may be one more than it needs."""
    low = 0
    high = num_rows - 1
    while low < high:
        middle = (low + high + 1) // 2
        begin = (tl.load(q_starts_ptr + middle) - base) // QUERIES + middle
        if begin <= queries_block:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def _attend(
    sums,
    highest,
    total,
    q,
    query_positions,
    slopes,
    cache_ptr,
    cache_descriptor,
    table_ptr,
    first_tile,
    end_tile,
    kv_len,
    kv_head,
    score_scale,
    soft_cap,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    ALIBI: tl.constexpr,
    MASKED: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
    UPCAST: tl.constexpr,
):
    factor = sharpness(score_scale, SOFT_CAP)
    for tile in range(first_tile, end_tile):
        positions = tile * TILE + tl.arange(0, TILE)
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
            MASKED,
            DESCRIPTOR,
        )
        scores = tile_scores(q, keys, score_scale, soft_cap, SOFT_CAP, UPCAST)
        if ALIBI:
            scores += slopes[:, None] * (positions[None, :] - query_positions[:, None]).to(tl.float32)
        if MASKED:
            visible = positions[None, :] <= query_positions[:, None]
            if WINDOW > 0:
                visible = visible & (positions[None, :] > query_positions[:, None] - WINDOW)
            scores = tl.where(visible, scores, float("-inf"))
        # A tile may lie wholly before a query's window.
        sums, highest, total = accumulate(sums, highest, total, scores, values, factor, MASKED and WINDOW > 0, UPCAST)
    return sums, highest, total


# Steps differ in these: specialised code would have to be compiled while requests wait.
@triton.jit(
    do_not_specialize=["num_rows", "table_stride"],
    do_not_specialize_on_alignment=["tables_ptr", "kv_lens_ptr", "q_starts_ptr"],
)
def _prefill_kernel(
    q_ptr,
    cache_ptr,
    cache_descriptor,
    output_ptr,
    tables_ptr,
    kv_lens_ptr,
    q_starts_ptr,
    slopes_ptr,
    sinks_ptr,
    num_rows,
    table_stride,
    score_scale,
    soft_cap,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
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
    # The last queries of a row see the most keys: they start first, for all heads, so that short programs end the
    # launch.
    kv_head = tl.program_id(0)
    queries_block = tl.num_programs(1) - 1 - tl.program_id(1)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    base = tl.load(q_starts_ptr)
    row = _find_row(q_starts_ptr, base, num_rows, queries_block, QUERIES)
    q_start = tl.load(q_starts_ptr + row)
    q_len = (tl.load(q_starts_ptr + row + 1) - q_start).to(tl.int32)
    block_in_row = queries_block - ((q_start - base) // QUERIES + row).to(tl.int32)
    if block_in_row * QUERIES >= q_len:
        return
    kv_len = tl.load(kv_lens_ptr + row)

    rows = tl.arange(0, QUERIES * HEADS)
    queries = block_in_row * QUERIES + rows // HEADS
    heads = rows % HEADS
    columns = tl.arange(0, BLOCK_D)
    inside_q = ((queries < q_len) & (heads < GROUP))[:, None] & (columns < HEAD_DIM)[None, :]
    head_rows = (q_start + queries) * (NUM_KV_HEADS * GROUP) + kv_head * GROUP + heads
    q_offsets = head_rows[:, None] * HEAD_DIM + columns[None, :]
    q = tl.load(q_ptr + q_offsets, mask=inside_q, other=0.0)
    first_position = kv_len - q_len + block_in_row * QUERIES
    query_positions = first_position + rows // HEADS
    last_position = tl.minimum(kv_len, first_position + QUERIES) - 1

    highest = tl.full([QUERIES * HEADS], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES * HEADS], tl.float32)
    sums = tl.zeros([QUERIES * HEADS, BLOCK_D], tl.float32)
    slopes = 0.0
    if ALIBI:
        slopes = tl.load(slopes_ptr + kv_head * GROUP + heads, mask=heads < GROUP, other=0.0)
    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    end_tile = last_position // TILE + 1
    if WINDOW > 0:
        begin_masked = tl.maximum(0, first_position - WINDOW + 1) // TILE
    else:
        # Tiles that every query of the program sees whole need no mask.
        begin_masked = (first_position + 1) // TILE
        sums, highest, total = _attend(
            sums,
            highest,
            total,
            q,
            query_positions,
            slopes,
            cache_ptr,
            cache_descriptor,
            table_ptr,
            0,
            begin_masked,
            kv_len,
            kv_head,
            score_scale,
            soft_cap,
            NUM_KV_HEADS,
            HEAD_DIM,
            BLOCK_D,
            BLOCK_SIZE,
            TILE,
            WINDOW,
            SOFT_CAP,
            ALIBI,
            False,
            DESCRIPTOR,
            UPCAST,
        )
    sums, highest, total = _attend(
        sums,
        highest,
        total,
        q,
        query_positions,
        slopes,
        cache_ptr,
        cache_descriptor,
        table_ptr,
        begin_masked,
        end_tile,
        kv_len,
        kv_head,
        score_scale,
        soft_cap,
        NUM_KV_HEADS,
        HEAD_DIM,
        BLOCK_D,
        BLOCK_SIZE,
        TILE,
        WINDOW,
        SOFT_CAP,
        ALIBI,
        True,
        DESCRIPTOR,
        UPCAST,
    )
    if SINKS:
        factor = sharpness(score_scale, SOFT_CAP)
        total += sink_weights(sinks_ptr, kv_head * GROUP + heads, heads < GROUP, highest, factor)
    # A row that sees anything has a largest weight of 1; rows that only pad see nothing.
    tl.store(output_ptr + q_offsets, (sums / tl.maximum(total, 1.0)[:, None]).to(q.dtype), mask=inside_q)


def prefill_attention(
    q_THD: Tensor,
    cache_NP2KD: Tensor,
    output_THD: Tensor,
    block_tables_BM: Tensor,
    kv_lens_B: Tensor,
    q_starts_B: Tensor,
    num_tokens: int,
    spec: AttentionSpec,
    tuning: Tuning,
    terms: HeadTerms,
) -> None:
    """Attention of rows with any number of queries; see ``Kernels.attention``.

    Args:
        q_THD: queries of the whole step.
        cache_NP2KD: the layer's cache.
        output_THD: where results go, as ``q_THD``.
        block_tables_BM: of the rows to compute.
        kv_lens_B: int32, of the rows to compute.
        q_starts_B: int64 [B + 1], where each of these rows begins in the T axis.
        num_tokens: queries of these rows, an upper bound.
        spec: the layer's attention.
        tuning: tile sizes.
        terms: what the scores of the layer's heads get.
    """
    block_d = next_power_of_2(spec.head_dim)
    group = spec.num_heads // spec.num_kv_heads
    heads = next_power_of_2(group)
    queries = max(1, program_rows(tuning, block_d, q_THD.element_size()) // heads)
    num_rows = len(kv_lens_B)
    tile = tile_tokens(tuning.prefill_tile_bytes, block_d, q_THD.element_size())
    descriptor, has_descriptor = cache_descriptor(cache_NP2KD, tile, wanted=tuning.prefill_descriptors)
    _prefill_kernel[(spec.num_kv_heads, num_tokens // queries + num_rows)](
        q_THD,
        cache_NP2KD,
        descriptor,
        output_THD,
        block_tables_BM,
        kv_lens_B,
        q_starts_B,
        q_THD if terms.slopes_H is None else terms.slopes_H,
        q_THD if terms.sinks_H is None else terms.sinks_H,
        num_rows,
        block_tables_BM.stride(0),
        *score_factors(spec),
        NUM_KV_HEADS=spec.num_kv_heads,
        GROUP=group,
        HEADS=heads,
        QUERIES=queries,
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
        num_warps=tuning.prefill_warps * max(1, q_THD.element_size() // 2),
        num_stages=program_stages(tuning, heads, block_d),
        **launch_options(tuning.dependent_launch),
    )


def program_rows(tuning: Tuning, block_d: int, item_bytes: int) -> int:
    """Queries times heads of a program: fewer where a row is long, so that sums and tiles fit."""
    return max(16, min(tuning.prefill_rows, tuning.prefill_rows * 256 // (block_d * item_bytes)))


def program_stages(tuning: Tuning, heads: int, block_d: int) -> int:
    """Stages of a program that takes ``heads`` query heads of ``block_d`` features."""
    return tuning.prefill_light_stages if heads <= 2 or block_d <= 64 else tuning.prefill_stages
