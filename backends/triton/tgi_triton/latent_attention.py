"""Attention over a latent cache: one row a token, whose first features are the value, for all heads of a query.

A program takes some heads of one token's query and a share of the keys it sees, so a key is read once for all of these
heads and serves as the value too. Prefill and decode differ only in how many tokens there are: each sees its own number
of keys, which is read on the device. Source: DeepSeek-AI 2024 (multi-head latent attention, in its absorbed form).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec
from tgi_triton.device_code import (
    INTERPRETED,
    LOG2_E,
    dot,
    gdc_launch_dependents,
    gdc_wait,
    launch_options,
    next_power_of_2,
)
from tgi_triton.online_softmax import accumulate, combine_shares, leave_share
from tgi_triton.tuning import Tuning

FEATURES = frozenset({"latent values"})

_LARGEST_LATENT, _LARGEST_REST = 512, 128
_SMALLEST_DOT = 16
_MAX_SPLITS = 32


class PreparedLatent(NamedTuple):
    """A step's tokens as rows of their own.

    Attributes:
        tables_BM: the rows' block tables, int32.
        rows_T: int32, whose table each token reads; None where every row has one token.
        seen_T: int32, keys that each token sees.
        splits: shares of a token's keys.
        sums, statistics: where splits leave their shares.
        arrivals_X: counts the programs that are done with a token and its heads; all zeros between launches.
    """

    tables_BM: Tensor
    rows_T: Tensor | None
    seen_T: Tensor
    splits: int
    sums: Tensor
    statistics: Tensor
    arrivals_X: Tensor


def fits(spec: AttentionSpec, tuning: Tuning) -> bool:
    """Whether the kernel takes ``spec``, which has latent values, on a device of this tuning."""
    latent = spec.latent_values or 0
    rest = spec.head_dim - latent
    plain = spec.features == FEATURES and spec.window is None and spec.num_kv_heads == 1
    return bool(tuning.latent_heads) and plain and latent <= _LARGEST_LATENT and 0 < rest <= _LARGEST_REST


def prepare(batch: AttentionBatch, spec: AttentionSpec, tuning: Tuning, arrivals_X: Tensor) -> PreparedLatent:
    """What the layers of a group share."""
    num_tokens = sum(batch.q_lens)
    if num_tokens == len(batch.q_lens):
        rows_T, seen_T = None, batch.kv_lens_B
    else:
        rows_B = torch.arange(len(batch.q_lens), dtype=torch.int32, device=batch.kv_lens_B.device)
        q_lens_B = batch.q_starts_B.diff()
        rows_T = rows_B.repeat_interleave(q_lens_B, output_size=num_tokens)
        # Token t of row b sees kv_len - (q_end - t) + 1 keys.
        shifts_B = batch.kv_lens_B - batch.q_starts_B[1:]
        tokens_T = torch.arange(1, num_tokens + 1, device=rows_T.device)
        seen_T = (tokens_T + shifts_B.repeat_interleave(q_lens_B, output_size=num_tokens)).int()
    heads = _heads(spec, tuning)
    places = num_tokens * triton.cdiv(spec.num_heads, heads)
    splits = min(_MAX_SPLITS, triton.cdiv(tuning.programs, places))
    unused = arrivals_X.view(torch.float32)
    sums, statistics = unused, unused
    if splits > 1:
        shares = places * splits
        latent = max(_SMALLEST_DOT, next_power_of_2(spec.latent_values or 0))
        sums = torch.empty((shares, heads, latent), dtype=torch.float32, device=arrivals_X.device)
        statistics = torch.empty((shares, 2, heads), dtype=torch.float32, device=arrivals_X.device)
    return PreparedLatent(batch.block_tables_BM, rows_T, seen_T, splits, sums, statistics, arrivals_X)


@triton.jit(do_not_specialize=["table_stride"])
def _latent_kernel(
    q_ptr,
    cache_ptr,
    output_ptr,
    tables_ptr,
    rows_ptr,
    seen_ptr,
    sums_ptr,
    statistics_ptr,
    arrivals_ptr,
    table_stride,
    factor,
    NUM_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    LATENT: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    UPCAST: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    head_block = tl.program_id(0)
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    token = tl.program_id(2).to(tl.int64)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    seen = tl.load(seen_ptr + token)
    row = token
    if ROWS:
        row = tl.load(rows_ptr + token).to(tl.int64)
    num_tiles = tl.cdiv(seen, TILE)
    tiles_a_split = tl.cdiv(num_tiles, splits)
    begin = split * tiles_a_split
    if begin >= num_tiles:
        return
    end = tl.minimum(begin + tiles_a_split, num_tiles)

    heads = head_block * HEADS + tl.arange(0, HEADS)
    latents = tl.arange(0, BLOCK_L)
    rest = tl.arange(0, BLOCK_R)
    exists = (heads < NUM_HEADS)[:, None]
    q_offsets = (token * NUM_HEADS + heads)[:, None] * HEAD_DIM
    q_latent = tl.load(q_ptr + q_offsets + latents[None, :], mask=exists & (latents < LATENT)[None, :], other=0.0)
    inside_rest = (rest < HEAD_DIM - LATENT)[None, :]
    q_rest = tl.load(q_ptr + q_offsets + LATENT + rest[None, :], mask=exists & inside_rest, other=0.0)
    table_ptr = tables_ptr + row * table_stride
    highest = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    sums = tl.zeros([HEADS, BLOCK_L], tl.float32)
    for tile in range(begin, end):
        positions = tile * TILE + tl.arange(0, TILE)
        visible = positions < seen
        blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=visible, other=0).to(tl.int64)
        entry_ptrs = cache_ptr + ((blocks * BLOCK_SIZE + positions % BLOCK_SIZE) * HEAD_DIM)[:, None]
        keys = tl.load(entry_ptrs + latents[None, :], mask=visible[:, None] & (latents < LATENT)[None, :], other=0.0)
        key_rest = tl.load(entry_ptrs + LATENT + rest[None, :], mask=visible[:, None] & inside_rest, other=0.0)
        scores = dot(q_latent, tl.trans(keys), UPCAST) + dot(q_rest, tl.trans(key_rest), UPCAST)
        scores = tl.where(visible[None, :], scores, float("-inf"))
        sums, highest, total = accumulate(sums, highest, total, scores, keys, factor, False, UPCAST)

    output_offsets = (token * NUM_HEADS + heads)[:, None] * LATENT + latents[None, :]
    inside = exists & (latents < LATENT)[None, :]
    used = tl.cdiv(num_tiles, tiles_a_split)
    if used > 1:
        place = token * tl.num_programs(0) + head_block
        # All threads have stored before the one that counts releases.
        leave_share(sums_ptr, statistics_ptr, place * splits + split, sums, highest, total, HEADS, BLOCK_L)
        if tl.atomic_add(arrivals_ptr + place, 1) < used - 1:
            return
        tl.store(arrivals_ptr + place, 0)
        all_sums, _, all_total = combine_shares(sums_ptr, statistics_ptr, place * splits, used, factor, HEADS, BLOCK_L)
        tl.store(output_ptr + output_offsets, (all_sums / all_total[:, None]).to(q_latent.dtype), mask=inside)
        return
    tl.store(output_ptr + output_offsets, (sums / total[:, None]).to(q_latent.dtype), mask=inside)


def attend(q_THD: Tensor, cache_NP1D: Tensor, prepared: PreparedLatent, spec: AttentionSpec, tuning: Tuning) -> Tensor:
    """See ``Kernels.attention``; the cache is [N, P, 1, 1, D]."""
    latent = spec.latent_values or 0
    output_THL = q_THD.new_empty((*q_THD.shape[:2], latent))
    item_bytes = q_THD.element_size()
    block_l, heads = max(_SMALLEST_DOT, next_power_of_2(latent)), _heads(spec, tuning)
    tile = min(64, max(_SMALLEST_DOT, tuning.latent_tile_bytes // (block_l * item_bytes)))
    _latent_kernel[(triton.cdiv(spec.num_heads, heads), prepared.splits, len(q_THD))](
        q_THD.contiguous(),
        cache_NP1D,
        output_THL,
        prepared.tables_BM,
        prepared.seen_T if prepared.rows_T is None else prepared.rows_T,
        prepared.seen_T,
        prepared.sums,
        prepared.statistics,
        prepared.arrivals_X,
        prepared.tables_BM.stride(0),
        spec.scale * LOG2_E,
        NUM_HEADS=spec.num_heads,
        HEADS=heads,
        HEAD_DIM=spec.head_dim,
        LATENT=latent,
        BLOCK_L=block_l,
        BLOCK_R=max(_SMALLEST_DOT, next_power_of_2(spec.head_dim - latent)),
        BLOCK_SIZE=cache_NP1D.shape[1],
        TILE=tile,
        ROWS=prepared.rows_T is not None,
        UPCAST=INTERPRETED,
        DEPENDENT=tuning.dependent_launch,
        num_warps=tuning.latent_warps if heads > _SMALLEST_DOT else 4,
        num_stages=tuning.latent_stages,
        **launch_options(tuning.dependent_launch),
    )
    return output_THL


def _heads(spec: AttentionSpec, tuning: Tuning) -> int:
    """Heads of a program."""
    return min(tuning.latent_heads, max(_SMALLEST_DOT, next_power_of_2(spec.num_heads)))
