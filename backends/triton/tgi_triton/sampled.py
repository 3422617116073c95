"""Temperature, top-k, top-p and the choice of one token a row, without sorting.

One program a row reads the logits several times out of the cache. Where top-k and top-p cut is found by bisection over
the scores' bit patterns, which are ordered like the scores: a pass counts the scores above a threshold and sums their
probabilities. Of equal scores at the cut those with the smaller token id stay, found by bisection over the ids.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.contract import SampleInputs
from tgi_triton.device_code import launch_options
from tgi_triton.tuning import Tuning

_BLOCK = 8192
_ZERO_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}
"""Low bits that are zero in a score of the type widened to float32: bisection need not look at them."""


@triton.jit
def _mix(x, key):
    """lowbias32 with a second key between its rounds; see ``tgi_core.reference.noise``."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x ^ key
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _absorb(salt, seed, choice, position):
    """One of the two keys of a row's noise: its words are seed (low, high), choice and position."""
    none = (seed & 0).to(tl.uint32)
    key = _mix((none + salt) ^ (seed & 0xFFFFFFFF).to(tl.uint32), none)
    key = _mix(key ^ ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32), none)
    key = _mix(key ^ choice.to(tl.uint32), none)
    return _mix(key ^ position.to(tl.uint32), none)


@triton.jit
def gumbel(ids, first_key, second_key):
    """The noise of token ids; see ``tgi_core.reference.noise.gumbel_noise``."""
    bits = _mix((ids.to(tl.uint32) * 0x9E3779B9) ^ first_key, second_key)
    uniform = ((bits >> 9) * 2 + 1).to(tl.float32) * 5.9604644775390625e-08
    return -tl.log(-tl.log(uniform))


@triton.jit
def _order(x, ZERO_BITS: tl.constexpr):
    """An int32 that orders as the float32 does, without its constant low bits."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> ZERO_BITS


@triton.jit
def _score(order, ZERO_BITS: tl.constexpr):
    """The float32 whose ``_order`` this is."""
    widened = (order << ZERO_BITS) | tl.where(order < 0, (1 << ZERO_BITS) - 1, 0)
    return (widened ^ ((widened >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _above(row_ptr, vocab_size, threshold, highest, sharpness, ZERO_BITS: tl.constexpr, BLOCK: tl.constexpr):
    """How many scores are at least ``threshold``, and the sum of their weights."""
    counts = tl.zeros([BLOCK], tl.int32)
    weights = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        counted = (ids < vocab_size) & (_order(x, ZERO_BITS) >= threshold)
        counts += counted.to(tl.int32)
        weights += tl.where(counted, tl.exp((x - highest) * sharpness), 0.0)
    return tl.sum(counts), tl.sum(weights)


@triton.jit
def _equal_before(row_ptr, vocab_size, order, limit, ZERO_BITS: tl.constexpr, BLOCK: tl.constexpr):
    """How many scores of this order have an id below ``limit``."""
    counts = tl.zeros([BLOCK], tl.int32)
    for start in range(0, limit, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        counts += ((ids < limit) & (_order(x, ZERO_BITS) == order)).to(tl.int32)
    return tl.sum(counts)


@triton.jit(do_not_specialize=["vocab_size"])
def _sampled_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    do_sample_ptr,
    seed_ptr,
    choice_ptr,
    position_ptr,
    ids_ptr,
    logprobs_ptr,
    row_stride,
    vocab_size,
    ZERO_BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    samples = tl.load(do_sample_ptr + row) != 0
    sharpness = tl.where(samples, 1.0 / tl.load(temperature_ptr + row), 1.0)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    lane_highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        lane_highest = tl.maximum(lane_highest, x)
    highest = tl.max(lane_highest)

    # What stays: scores of a higher order than ``lowest``, and ``num_lowest`` of those that equal it.
    top_order = _order(highest, ZERO_BITS)
    lowest = _order(highest * 0 - float("inf"), ZERO_BITS)
    num_lowest = vocab_size
    if samples & (top_k > 0) & (top_k < vocab_size):
        end = top_order
        while lowest < end:
            middle = (lowest.to(tl.int64) + (end.to(tl.int64) - lowest.to(tl.int64) + 1) // 2).to(tl.int32)
            count, _ = _above(row_ptr, vocab_size, middle, highest, sharpness, ZERO_BITS, BLOCK)
            if count >= top_k:
                lowest = middle
            else:
                end = middle - 1
        count, _ = _above(row_ptr, vocab_size, lowest + 1, highest, sharpness, ZERO_BITS, BLOCK)
        num_lowest = top_k - count
    if samples & (top_p < 1.0):
        count, weight = _above(row_ptr, vocab_size, lowest + 1, highest, sharpness, ZERO_BITS, BLOCK)
        equal_weight = tl.exp((_score(lowest, ZERO_BITS) - highest) * sharpness)
        equal_count = _equal_before(row_ptr, vocab_size, lowest, vocab_size, ZERO_BITS, BLOCK)
        num_lowest = tl.minimum(num_lowest, equal_count)
        wanted = top_p * (weight + num_lowest.to(tl.float32) * equal_weight)
        if weight >= wanted:
            # The cut lies above the lowest score that top-k left.
            lowest += 1
            end = top_order
            while lowest < end:
                middle = (lowest.to(tl.int64) + (end.to(tl.int64) - lowest.to(tl.int64) + 1) // 2).to(tl.int32)
                _, weight = _above(row_ptr, vocab_size, middle, highest, sharpness, ZERO_BITS, BLOCK)
                if weight >= wanted:
                    lowest = middle
                else:
                    end = middle - 1
            count, weight = _above(row_ptr, vocab_size, lowest + 1, highest, sharpness, ZERO_BITS, BLOCK)
            equal_weight = tl.exp((_score(lowest, ZERO_BITS) - highest) * sharpness)
            num_lowest = vocab_size
        # Each one stays whose better ones have less than the wanted weight together; the best one always does.
        needed = tl.ceil((wanted - weight) / tl.maximum(equal_weight, 1e-38))
        needed = tl.minimum(tl.maximum(needed, 1.0), vocab_size.to(tl.float32)).to(tl.int32)
        num_lowest = tl.minimum(num_lowest, needed)

    id_limit = vocab_size
    if samples & (num_lowest < vocab_size):
        id_start = num_lowest * 0
        while id_start < id_limit:
            middle = (id_start + id_limit) // 2
            if _equal_before(row_ptr, vocab_size, lowest, middle, ZERO_BITS, BLOCK) >= num_lowest:
                id_limit = middle
            else:
                id_start = middle + 1

    seed = tl.load(seed_ptr + row)
    choice = tl.load(choice_ptr + row)
    position = tl.load(position_ptr + row)
    first_key = _absorb(0x243F6A88, seed, choice, position)
    second_key = _absorb(0x85A308D3, seed, choice, position)
    lane_best = tl.full([BLOCK], float("-inf"), tl.float32)
    lane_id = tl.arange(0, BLOCK) * 0
    lane_score = tl.full([BLOCK], float("-inf"), tl.float32)
    totals = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        order = _order(x, ZERO_BITS)
        stays = (ids < vocab_size) & ((order > lowest) | ((order == lowest) & (ids < id_limit)))
        stays = stays | ((ids < vocab_size) & (samples == 0))
        score = (x - highest) * sharpness
        totals += tl.where(stays, tl.exp(score), 0.0)
        noisy = tl.where(samples, score + gumbel(ids, first_key, second_key), score)
        better = stays & (noisy > lane_best)
        lane_id = tl.where(better, ids, lane_id)
        lane_score = tl.where(better, score, lane_score)
        lane_best = tl.where(better, noisy, lane_best)
    best = tl.max(lane_best)
    chosen = tl.min(tl.where(lane_best == best, lane_id, vocab_size - 1))
    score = tl.max(tl.where((lane_best == best) & (lane_id == chosen), lane_score, float("-inf")))
    tl.store(ids_ptr + row, chosen.to(tl.int64))
    tl.store(logprobs_ptr + row, score - tl.log(tl.sum(totals)))


def sample(logits_BV: Tensor, inputs: SampleInputs, tuning: Tuning) -> tuple[Tensor, Tensor]:
    """The sampled tier of ``Kernels.sample`` for logits or scores; launches only, so it can be captured."""
    rows, vocab_size = logits_BV.shape
    ids_B = torch.empty(rows, dtype=torch.int64, device=logits_BV.device)
    logprobs_B = torch.empty(rows, dtype=torch.float32, device=logits_BV.device)
    _sampled_kernel[(rows,)](
        logits_BV,
        inputs.temperature_B,
        inputs.top_k_B,
        inputs.top_p_B,
        inputs.do_sample_B,
        inputs.seed_B,
        inputs.choice_B,
        inputs.positions_B,
        ids_B,
        logprobs_B,
        logits_BV.stride(0),
        vocab_size,
        ZERO_BITS=_ZERO_BITS[logits_BV.dtype],
        BLOCK=_BLOCK,
        num_warps=tuning.sampled_warps,
        **launch_options(False),
    )
    return ids_B, logprobs_B
