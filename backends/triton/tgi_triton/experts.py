"""Mixtures of experts: one launch multiplies every token with the matrices of its experts.

Pairs of token and expert are sorted by expert; a program takes a few pairs of one expert and a few outputs. The grid is
bounded by the number of pairs and experts and each program finds its expert on the device, so a launch depends on
nothing but the number of tokens. Source of the form: Gale et al. 2023 (MegaBlocks).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.contract.experts import ExpertWeights, Routed
from tgi_triton.activations import activate
from tgi_triton.device_code import INTERPRETED, dot, launch_options, next_power_of_2

_FEW_ROWS, _MANY_ROWS = 16, 64
"""Pairs of a program: the fewest that a matrix unit takes, and what reads weights seldom enough."""


class SortedPairs(NamedTuple):
    """The pairs of token and expert in the order of experts.

    Attributes:
        order_Y: int64, for each place the pair's number, ``token * R + choice``.
        starts_X: int32, where each expert's pairs begin.
        ends_X: int32, where they end.
        tile_ends_X: int32, where the expert's programs end, when each takes ``rows`` pairs.
        rows: pairs of a program.
        tiles: programs that are enough for any choice.
    """

    order_Y: Tensor
    starts_X: Tensor
    ends_X: Tensor
    tile_ends_X: Tensor
    rows: int
    tiles: int


def sort_pairs(experts_TR: Tensor, num_experts: int) -> SortedPairs:
    """Sort without a look at the values from the host."""
    chosen_Y = experts_TR.flatten()
    pairs = len(chosen_Y)
    rows = _FEW_ROWS if pairs <= _FEW_ROWS * num_experts else _MANY_ROWS
    counts_X = torch.zeros(num_experts, dtype=torch.int32, device=chosen_Y.device)
    counts_X.scatter_add_(0, chosen_Y, torch.ones_like(chosen_Y, dtype=torch.int32))
    ends_X = counts_X.cumsum(0, dtype=torch.int32)
    tile_ends_X = ((counts_X + rows - 1) // rows).cumsum(0, dtype=torch.int32)
    tiles = pairs // rows + min(num_experts, pairs)
    return SortedPairs(chosen_Y.argsort(stable=True), ends_X - counts_X, ends_X, tile_ends_X, rows, tiles)


@triton.jit
def _gated(gate, up, dtype: tl.constexpr, ACTIVATION: tl.constexpr):
    """The gated activation, rounded where a projection and an activation of their own would round."""
    gate = gate.to(dtype).to(tl.float32)
    up = up.to(dtype).to(tl.float32)
    if ACTIVATION == "swiglu_clamped":
        gate = tl.minimum(gate, 7.0)
        up = tl.minimum(tl.maximum(up, -7.0), 7.0)
        result = gate * tl.sigmoid(1.702 * gate) * (up + 1)
    else:
        result = activate(gate, ACTIVATION).to(dtype).to(tl.float32) * up
    return result


@triton.jit
def _experts_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    shares_ptr,
    output_ptr,
    order_ptr,
    starts_ptr,
    ends_ptr,
    tile_ends_ptr,
    num_outputs,
    INPUTS: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    UPCAST: tl.constexpr,
):
    tile = tl.program_id(1)
    experts = tl.arange(0, BLOCK_EXPERTS)
    known = experts < NUM_EXPERTS
    tile_ends = tl.load(tile_ends_ptr + experts, mask=known, other=2147483647)
    expert = tl.sum((tile_ends <= tile).to(tl.int32))
    if expert >= NUM_EXPERTS:
        return
    first_tile = tl.sum(tl.where(experts == expert - 1, tile_ends, 0))
    places = tl.load(starts_ptr + expert) + (tile - first_tile) * ROWS + tl.arange(0, ROWS)
    exists = places < tl.load(ends_ptr + expert)
    pairs = tl.load(order_ptr + places, mask=exists, other=0)
    # Up projections read tokens and write the sorted places, down projections read those and write the pairs.
    GATED: tl.constexpr = ACTIVATION is not None
    if GATED:
        x_rows = pairs // CHOSEN
        output_rows = places.to(tl.int64)
        halves = 2
    else:
        x_rows = places.to(tl.int64)
        output_rows = pairs
        halves = 1
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inside_outputs = outputs < num_outputs
    columns = tl.arange(0, BLOCK)
    x_ptrs = x_ptr + x_rows[:, None] * INPUTS + columns[None, :]
    expert_ptr = weight_ptr + expert.to(tl.int64) * halves * num_outputs * INPUTS
    weight_ptrs = expert_ptr + outputs.to(tl.int64)[None, :] * INPUTS + columns[:, None]
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    up_sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, INPUTS, BLOCK):
        inside = start + columns < INPUTS
        x = tl.load(x_ptrs + start, mask=exists[:, None] & inside[None, :], other=0.0)
        weight_mask = inside[:, None] & inside_outputs[None, :]
        weights = tl.load(weight_ptrs + start, mask=weight_mask, other=0.0)
        sums += dot(x, weights, UPCAST)
        if GATED:
            up_ptrs = weight_ptrs + num_outputs.to(tl.int64) * INPUTS
            up_sums += dot(x, tl.load(up_ptrs + start, mask=weight_mask, other=0.0), UPCAST)
    bias_ptrs = bias_ptr + expert * halves * num_outputs + outputs
    if BIAS:
        sums += tl.load(bias_ptrs, mask=inside_outputs, other=0.0).to(tl.float32)[None, :]
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    if GATED:
        if BIAS:
            up_sums += tl.load(bias_ptrs + num_outputs, mask=inside_outputs, other=0.0).to(tl.float32)[None, :]
        result = _gated(sums, up_sums, dtype, ACTIVATION)
    else:
        shares = tl.load(shares_ptr + pairs, mask=exists, other=0.0)
        result = sums.to(dtype).to(tl.float32) * shares[:, None]
    output_ptrs = output_ptr + output_rows[:, None] * num_outputs + outputs[None, :]
    mask = exists[:, None] & inside_outputs[None, :]
    tl.store(output_ptrs, result.to(output_ptr.dtype.element_ty), mask=mask)


def experts(x_TE: Tensor, weights: ExpertWeights, routed: Routed, activation: str) -> Tensor:
    """See ``ExpertKernels.experts``; the packed weights are the dense ones."""
    tokens, chosen = routed.experts_TR.shape
    if not tokens:
        return torch.empty_like(x_TE)
    sorted_pairs = sort_pairs(routed.experts_TR, len(weights.gate_up))
    inner, hidden = weights.gate_up.shape[1] // 2, x_TE.shape[1]
    x_YF = torch.empty((tokens * chosen, inner), dtype=x_TE.dtype, device=x_TE.device)
    shares_Y = routed.weights_TR.flatten()
    _launch(x_TE, (weights.gate_up, weights.gate_up_bias_XN), shares_Y, x_YF, sorted_pairs, chosen, activation)
    output_YE = torch.empty((tokens * chosen, hidden), dtype=torch.float32, device=x_TE.device)
    _launch(x_YF, (weights.down, weights.down_bias_XE), shares_Y, output_YE, sorted_pairs, chosen, None)
    return output_YE.view(tokens, chosen, hidden).sum(dim=1).to(x_TE.dtype)


def _launch(
    x: Tensor,
    linear: tuple[Tensor, Tensor | None],
    shares_Y: Tensor,
    output: Tensor,
    sorted_pairs: SortedPairs,
    chosen: int,
    activation: str | None,
) -> None:
    weight_XNK, bias_XN = linear
    num_outputs = output.shape[1]
    outputs, block = 64, 128 // x.element_size()
    _experts_kernel[(triton.cdiv(num_outputs, outputs), sorted_pairs.tiles)](
        x.contiguous(),
        weight_XNK,
        weight_XNK if bias_XN is None else bias_XN,
        shares_Y,
        output,
        sorted_pairs.order_Y,
        sorted_pairs.starts_X,
        sorted_pairs.ends_X,
        sorted_pairs.tile_ends_X,
        num_outputs,
        INPUTS=x.shape[1],
        NUM_EXPERTS=len(weight_XNK),
        BLOCK_EXPERTS=next_power_of_2(len(weight_XNK)),
        CHOSEN=chosen,
        BIAS=bias_XN is not None,
        ACTIVATION=activation,
        ROWS=sorted_pairs.rows,
        OUTPUTS=outputs,
        BLOCK=block,
        UPCAST=INTERPRETED,
        # float32 takes twice the registers.
        num_warps=2 * x.element_size(),
        num_stages=3,
        **launch_options(dependent_launch=False),
    )
