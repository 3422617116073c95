"""Pairs of token and expert in the order of experts: a counting sort that keeps the order of equal ones.

Programs take chunks of pairs. Where there are several chunks a launch counts each chunk's experts first; then every
program adds up the counts for itself and places its own pairs, so that no program waits for another.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_triton.device_code import gdc_launch_dependents, gdc_wait, launch_options, next_power_of_2

_CHUNKS = (128, 512)
"""Pairs of a program: of a step of few, and of all others."""
_SLICE = 16
"""Pairs, or chunks, that are compared with others at a time."""


class SortedPairs(NamedTuple):
    """The pairs of token and expert in the order of experts.

    Attributes:
        order_Y: int32, for each place the pair's number, ``token * R + choice``.
        ends_3X: int32: where each expert's pairs begin, where they end, and where its programs end when each takes
            ``rows`` pairs.
        rows: pairs of a program.
        tiles: programs that are enough for any choice.
    """

    order_Y: Tensor
    ends_3X: Tensor
    rows: int
    tiles: int


@triton.jit
def _count(experts_ptr, first, num_pairs, CHUNK: tl.constexpr, BLOCK_EXPERTS: tl.constexpr, SLICE: tl.constexpr):
    """How many pairs of a chunk each expert has."""
    columns = tl.arange(0, BLOCK_EXPERTS)
    counts = tl.zeros([SLICE, BLOCK_EXPERTS], tl.int32)
    for start in range(0, CHUNK, SLICE):
        pairs = first + start + tl.arange(0, SLICE)
        experts = tl.load(experts_ptr + pairs, mask=pairs < num_pairs, other=-1).to(tl.int32)
        counts += (experts[:, None] == columns[None, :]).to(tl.int32)
    return tl.sum(counts, axis=0)


@triton.jit(do_not_specialize=["num_pairs"])
def _count_experts_kernel(
    experts_ptr,
    counts_ptr,
    num_pairs,
    CHUNK: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    SLICE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    chunk = tl.program_id(0)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    counts = _count(experts_ptr, chunk * CHUNK, num_pairs, CHUNK, BLOCK_EXPERTS, SLICE)
    tl.store(counts_ptr + chunk * BLOCK_EXPERTS + tl.arange(0, BLOCK_EXPERTS), counts)


@triton.jit(do_not_specialize=["num_pairs", "num_chunks"])
def _order_experts_kernel(
    experts_ptr,
    counts_ptr,
    order_ptr,
    ends_ptr,
    num_pairs,
    num_chunks,
    NUM_EXPERTS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    SLICE: tl.constexpr,
    SINGLE: tl.constexpr,
    GATHER: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    chunk = tl.program_id(0)
    columns = tl.arange(0, BLOCK_EXPERTS)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    if SINGLE:
        totals = _count(experts_ptr, 0, num_pairs, CHUNK, BLOCK_EXPERTS, SLICE)
        before = tl.zeros([BLOCK_EXPERTS], tl.int32)
    else:
        slice_totals = tl.zeros([SLICE, BLOCK_EXPERTS], tl.int32)
        slice_before = tl.zeros([SLICE, BLOCK_EXPERTS], tl.int32)
        for start in range(0, num_chunks, SLICE):
            others = start + tl.arange(0, SLICE)
            offsets = others[:, None] * BLOCK_EXPERTS + columns[None, :]
            counts = tl.load(counts_ptr + offsets, mask=(others < num_chunks)[:, None], other=0)
            slice_totals += counts
            slice_before += tl.where((others < chunk)[:, None], counts, 0)
        totals = tl.sum(slice_totals, axis=0)
        before = tl.sum(slice_before, axis=0)
    ends = tl.cumsum(totals, axis=0)
    if chunk == 0:
        inside = columns < NUM_EXPERTS
        tl.store(ends_ptr + columns, ends - totals, mask=inside)
        tl.store(ends_ptr + NUM_EXPERTS + columns, ends, mask=inside)
        tile_ends = tl.cumsum((totals + ROWS - 1) // ROWS, axis=0)
        tl.store(ends_ptr + 2 * NUM_EXPERTS + columns, tile_ends, mask=inside)

    pairs = chunk * CHUNK + tl.arange(0, CHUNK)
    exists = pairs < num_pairs
    experts = tl.load(experts_ptr + pairs, mask=exists, other=0).to(tl.int32)
    earlier = tl.zeros([CHUNK, SLICE], tl.int32)
    for start in range(0, CHUNK, SLICE):
        others = chunk * CHUNK + start + tl.arange(0, SLICE)
        other_experts = tl.load(experts_ptr + others, mask=others < num_pairs, other=-1).to(tl.int32)
        same = experts[:, None] == other_experts[None, :]
        earlier += (same & (others[None, :] < pairs[:, None])).to(tl.int32)
    firsts = ends - totals + before
    if GATHER:
        first_places = tl.gather(firsts, experts, axis=0)
    else:
        first_places = tl.sum(tl.where(experts[:, None] == columns[None, :], firsts[None, :], 0), axis=1)
    tl.store(order_ptr + first_places + tl.sum(earlier, axis=1), pairs, mask=exists)


def sort_pairs(
    experts_TR: Tensor, num_experts: int, rows: int, *, gather: bool = True, dependent: bool = False
) -> SortedPairs:
    """Sort without a look at the values from the host.

    Args:
        experts_TR: the experts of each token.
        num_experts: how many there are.
        rows: pairs of a program.
        gather: see ``Tuning.gather``.
        dependent: see ``Tuning.dependent_launch``.
    """
    device, pairs = experts_TR.device, experts_TR.numel()
    few, many = _CHUNKS
    # Without a gather a program compares each of its pairs with all experts at once.
    chunk = few if pairs <= few or not gather else many
    chunks = triton.cdiv(pairs, chunk)
    block = next_power_of_2(num_experts)
    order_Y = torch.empty(pairs, dtype=torch.int32, device=device)
    ends_3X = torch.empty((3, num_experts), dtype=torch.int32, device=device)
    counts_CX = torch.empty((chunks, block), dtype=torch.int32, device=device)
    experts_TR = experts_TR.contiguous()
    common = {
        "CHUNK": chunk,
        "BLOCK_EXPERTS": block,
        "SLICE": _SLICE,
        "DEPENDENT": dependent,
        "num_warps": 4 if chunk == few else 16,
        **launch_options(dependent),
    }
    if chunks > 1:
        _count_experts_kernel[(chunks,)](experts_TR, counts_CX, pairs, **common)
    _order_experts_kernel[(chunks,)](
        experts_TR,
        counts_CX,
        order_Y,
        ends_3X,
        pairs,
        chunks,
        NUM_EXPERTS=num_experts,
        ROWS=rows,
        SINGLE=chunks == 1,
        GATHER=gather,
        **common,
    )
    return SortedPairs(order_Y, ends_3X, rows, pairs // rows + min(num_experts, pairs))
