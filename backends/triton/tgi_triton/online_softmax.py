"""The step that decode and prefill attention repeat for each tile of keys and values.

Source: Milakov and Gimelshein 2018 (online softmax), Dao 2023 (FlashAttention-2).
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from tgi_core.contract import AttentionSpec
from tgi_triton.device_code import LOG2_E, dot, tanh


class HeadTerms(NamedTuple):
    """What some models add to the scores of each head.

    Slopes of a bias on distance, float32 [H] in the unit of ``tile_scores``, and sinks [H] in the model's type.
    """

    slopes_H: Tensor | None = None
    sinks_H: Tensor | None = None


@triton.jit
def tile_scores(q, keys, score_scale, soft_cap, SOFT_CAP: tl.constexpr, UPCAST: tl.constexpr):
    """Scores [M, TILE] of queries [M, D] and keys [TILE, D]; times ``sharpness`` they are in base 2."""
    scores = dot(q, tl.trans(keys), UPCAST)
    if SOFT_CAP:
        scores = soft_cap * tanh(scores * score_scale)
    return scores


@triton.jit
def sharpness(score_scale, SOFT_CAP: tl.constexpr):
    """What brings ``tile_scores`` to base 2: a capped score is there already."""
    if SOFT_CAP:
        factor = score_scale * 0.0 + 1.0
    else:
        factor = score_scale
    return factor


@triton.jit
def sink_weights(sinks_ptr, heads, exists, highest, factor):
    """What a head's sink adds to the total of its weights."""
    sinks = tl.load(sinks_ptr + heads, mask=exists, other=float("-inf")).to(tl.float32)
    return tl.exp2(sinks * 1.4426950408889634 - highest * factor)


@triton.jit
def accumulate(sums, highest, total, scores, values, factor, MAY_SEE_NOTHING: tl.constexpr, UPCAST: tl.constexpr):
    """Take a tile into the weighted sums [M, D]; ``highest`` and ``total`` [M] are the softmax's running statistics.

    The scale enters with the exponential, where it costs nothing: one multiply-add instead of a product and a
    difference. ``highest`` is in the unit of the scores. With MAY_SEE_NOTHING a query may have seen no key so far.
    """
    new_highest = tl.maximum(highest, tl.max(scores, axis=1))
    shift = new_highest * factor
    if MAY_SEE_NOTHING:
        shift = tl.where(new_highest == float("-inf"), 0.0, shift)
    weights = tl.exp2(scores * factor - shift[:, None])
    shrink = tl.exp2(highest * factor - shift)
    total = total * shrink + tl.sum(weights, axis=1)
    sums = sums * shrink[:, None] + dot(weights.to(values.dtype), values, UPCAST)
    return sums, new_highest, total


@triton.jit
def leave_share(sums_ptr, statistics_ptr, share, sums, highest, total, HEADS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Leave a program's share in memory, where ``combine_shares`` finds it once all threads have stored."""
    heads = tl.arange(0, HEADS)
    offsets = heads[:, None] * BLOCK_D + tl.arange(0, BLOCK_D)[None, :]
    tl.store(sums_ptr + share * HEADS * BLOCK_D + offsets, sums)
    tl.store(statistics_ptr + share * 2 * HEADS + heads, highest)
    tl.store(statistics_ptr + share * 2 * HEADS + HEADS + heads, total)
    tl.debug_barrier()


@triton.jit
def combine_shares(sums_ptr, statistics_ptr, first_share, used, factor, HEADS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Put shares together that programs have left in memory: (sums [HEADS, BLOCK_D], highest, total)."""
    heads = tl.arange(0, HEADS)
    offsets = heads[:, None] * BLOCK_D + tl.arange(0, BLOCK_D)[None, :]
    highest = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    sums = tl.zeros([HEADS, BLOCK_D], tl.float32)
    for other in range(used):
        share = first_share + other
        part_highest = tl.load(statistics_ptr + share * 2 * HEADS + heads, cache_modifier=".cg")
        part_total = tl.load(statistics_ptr + share * 2 * HEADS + HEADS + heads, cache_modifier=".cg")
        part = tl.load(sums_ptr + share * HEADS * BLOCK_D + offsets, cache_modifier=".cg")
        new_highest = tl.maximum(highest, part_highest)
        shrink = tl.exp2((highest - new_highest) * factor)
        part_shrink = tl.exp2((part_highest - new_highest) * factor)
        total = total * shrink + part_total * part_shrink
        sums = sums * shrink[:, None] + part * part_shrink[:, None]
        highest = new_highest
    return sums, highest, total


def score_factors(spec: AttentionSpec) -> tuple[float, float]:
    """(scale, soft cap) as the kernels take them: what follows the scores is exp2."""
    if spec.soft_cap is None:
        return spec.scale * LOG2_E, 0.0
    return spec.scale / spec.soft_cap, spec.soft_cap * LOG2_E


def slope_factor(spec: AttentionSpec) -> float:
    """What brings a slope of ``spec`` to the unit of ``tile_scores``."""
    return 1 / spec.scale if spec.soft_cap is None else LOG2_E
