"""The greedy choice and its log-probability in one pass over the logits, split along the vocabulary."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_triton.device_code import gdc_launch_dependents, gdc_wait, launch_options
from tgi_triton.tuning import Tuning

_BLOCK = 1024
_DEPTH = 8
"""Scores that a thread takes at a time, so that one exponential in so many rescales."""

_MAX_SPLITS = 32


@triton.jit
def _join(highest, index, total, other_highest, other_index, other_total):
    """Of two shares the larger maximum, of equal ones the smaller index, and the sum of both exponentials."""
    takes_other = (other_highest > highest) | ((other_highest == highest) & (other_index < index))
    new_highest = tl.maximum(highest, other_highest)
    shift = tl.where(new_highest == float("-inf"), 0.0, new_highest)
    total = total * tl.exp(highest - shift) + other_total * tl.exp(other_highest - shift)
    return new_highest, tl.where(takes_other, other_index, index), total


@triton.jit(do_not_specialize=["split_size"], do_not_specialize_on_alignment=["total_ptr", "index_ptr"])
def _greedy_kernel(
    logits_ptr,
    highest_ptr,
    index_ptr,
    total_ptr,
    arrivals_ptr,
    ids_ptr,
    logprobs_ptr,
    row_stride,
    vocab_size,
    split_size,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    split = tl.program_id(0)
    splits = tl.num_programs(0)
    row = tl.program_id(1).to(tl.int64)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    begin = split * split_size
    end = tl.minimum(begin + split_size, vocab_size)
    lanes = tl.arange(0, BLOCK)
    rows = tl.arange(0, DEPTH)
    lane_highest = tl.full([BLOCK], float("-inf"), tl.float32)
    lane_index = tl.minimum(begin + lanes, vocab_size - 1)
    lane_total = tl.zeros([BLOCK], tl.float32)
    for start in range(begin, end, DEPTH * BLOCK):
        columns = start + rows[:, None] * BLOCK + lanes[None, :]
        inside = columns < end
        x = tl.load(logits_ptr + row * row_stride + columns, mask=inside, other=float("-inf")).to(tl.float32)
        highest = tl.max(x, axis=0)
        index = tl.min(tl.where(x == highest[None, :], columns, vocab_size), axis=0)
        lane_index = tl.where(highest > lane_highest, index, lane_index)
        new_highest = tl.maximum(lane_highest, highest)
        shift = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        lane_total = lane_total * tl.exp(lane_highest - shift) + tl.sum(tl.exp(x - shift[None, :]), axis=0)
        lane_highest = new_highest
    highest = tl.max(lane_highest)
    index = tl.min(tl.where(lane_highest == highest, lane_index, vocab_size - 1))
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.sum(lane_total * tl.exp(lane_highest - shift))
    if splits > 1:
        tl.store(highest_ptr + row * splits + split, highest)
        tl.store(index_ptr + row * splits + split, index)
        tl.store(total_ptr + row * splits + split, total)
        tl.debug_barrier()
        if tl.atomic_add(arrivals_ptr + row, 1) < splits - 1:
            return
        tl.store(arrivals_ptr + row, 0)
        highest = tl.load(highest_ptr + row * splits, cache_modifier=".cg")
        index = tl.load(index_ptr + row * splits, cache_modifier=".cg")
        total = tl.load(total_ptr + row * splits, cache_modifier=".cg")
        for other in range(1, splits):
            place = row * splits + other
            highest, index, total = _join(
                highest,
                index,
                total,
                tl.load(highest_ptr + place, cache_modifier=".cg"),
                tl.load(index_ptr + place, cache_modifier=".cg"),
                tl.load(total_ptr + place, cache_modifier=".cg"),
            )
    tl.store(ids_ptr + row, index.to(tl.int64))
    tl.store(logprobs_ptr + row, -tl.log(total))


def choose_greedy(logits_BV: Tensor, tuning: Tuning, arrivals_X: Tensor) -> tuple[Tensor, Tensor]:
    """The first of the largest scores and its log-probability; see ``Kernels.sample``.

    ``arrivals_X`` is int32, all zeros before and after, with one element a row.
    """
    rows, vocab_size = logits_BV.shape
    device = logits_BV.device
    ids_B = torch.empty(rows, dtype=torch.int64, device=device)
    logprobs_B = torch.empty(rows, dtype=torch.float32, device=device)
    tile = _BLOCK * _DEPTH
    wanted = min(_MAX_SPLITS, triton.cdiv(4 * tuning.programs, rows), triton.cdiv(vocab_size, tile))
    tiles_a_split = triton.cdiv(vocab_size, tile * wanted)
    splits = triton.cdiv(vocab_size, tile * tiles_a_split)
    floats_2BX = torch.empty((2, rows, splits), dtype=torch.float32, device=device)
    _greedy_kernel[(splits, rows)](
        logits_BV,
        floats_2BX[0],
        torch.empty((rows, splits), dtype=torch.int32, device=device),
        floats_2BX[1],
        arrivals_X,
        ids_B,
        logprobs_B,
        logits_BV.stride(0),
        vocab_size,
        tiles_a_split * tile,
        DEPTH=_DEPTH,
        BLOCK=_BLOCK,
        DEPENDENT=tuning.dependent_launch,
        num_warps=8,
        **launch_options(tuning.dependent_launch),
    )
    return ids_B, logprobs_B
