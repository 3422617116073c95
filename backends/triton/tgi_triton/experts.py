"""Mixtures of experts: one launch multiplies every token with the matrices of its experts.

Pairs of token and expert are sorted by expert; a program takes a few pairs of one expert and a few outputs. The grid is
bounded by the number of pairs and experts and each program finds its expert on the device, so a launch depends on
nothing but the number of tokens. Source of the form: Gale et al. 2023 (MegaBlocks).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.contract.experts import ExpertWeights, Routed
from tgi_triton import single_experts
from tgi_triton.activations import gated_activation
from tgi_triton.device_code import (
    INTERPRETED,
    dot,
    gdc_launch_dependents,
    gdc_wait,
    launch_options,
    next_power_of_2,
)
from tgi_triton.expert_order import SortedPairs, sort_pairs
from tgi_triton.expert_tiles import FLOAT32_TILES, ExpertTiles, ProductTile, choose_tiles
from tgi_triton.tuning import Tuning

_COMBINE_BLOCK = 1024


@triton.jit(do_not_specialize=["num_tiles"])
def _experts_kernel(
    x_ptr,
    weight_ptr,
    weight_descriptor,
    bias_ptr,
    output_ptr,
    order_ptr,
    ends_ptr,
    num_outputs,
    num_tiles,
    INPUTS: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    WEIGHTS_LEFT: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
    UPCAST: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    # Neighbouring programs take the same outputs of a group of tiles, so that these weights are in the cache.
    programs_a_tile = tl.cdiv(num_outputs, OUTPUTS)
    group = tl.program_id(0) // (GROUP * programs_a_tile)
    place_in_group = tl.program_id(0) % (GROUP * programs_a_tile)
    tiles_in_group = tl.minimum(num_tiles - group * GROUP, GROUP)
    tile = group * GROUP + place_in_group % tiles_in_group
    first_output = place_in_group // tiles_in_group * OUTPUTS
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    experts = tl.arange(0, BLOCK_EXPERTS)
    tile_ends = tl.load(ends_ptr + 2 * NUM_EXPERTS + experts, mask=experts < NUM_EXPERTS, other=2147483647)
    expert = tl.sum((tile_ends <= tile).to(tl.int32))
    if expert >= NUM_EXPERTS:
        return
    first_tile = tl.sum(tl.where(experts == expert - 1, tile_ends, 0))
    places = tl.load(ends_ptr + expert) + (tile - first_tile) * ROWS + tl.arange(0, ROWS)
    end_place = tl.load(ends_ptr + NUM_EXPERTS + expert)
    exists = places < end_place
    # Rows and outputs that are too many repeat the last one and are not stored; so their loads need no mask.
    places = tl.minimum(places, end_place - 1)
    pairs = tl.load(order_ptr + places).to(tl.int64)
    # Up projections read tokens and write the sorted places, down projections read those and write the pairs.
    GATED: tl.constexpr = ACTIVATION is not None
    halves: tl.constexpr = 2 if GATED else 1
    if GATED:
        x_rows = pairs // CHOSEN
        output_rows = places.to(tl.int64)
    else:
        x_rows = places.to(tl.int64)
        output_rows = pairs
    outputs = first_output + tl.arange(0, OUTPUTS)
    columns = tl.arange(0, BLOCK)
    x_ptrs = x_ptr + x_rows[:, None] * INPUTS + columns[None, :]
    first_row = expert * halves * num_outputs + first_output
    expert_ptr = weight_ptr + expert.to(tl.int64) * halves * num_outputs * INPUTS
    weight_rows = tl.minimum(outputs, num_outputs - 1)
    weight_ptrs = expert_ptr + weight_rows.to(tl.int64)[:, None] * INPUTS + columns[None, :]
    up_ptrs = weight_ptrs + num_outputs.to(tl.int64) * INPUTS
    if WEIGHTS_LEFT:
        sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
        up_sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    else:
        sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
        up_sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, INPUTS, BLOCK):
        if INPUTS % BLOCK == 0:
            x = tl.load(x_ptrs + start)
        else:
            x = tl.load(x_ptrs + start, mask=(start + columns < INPUTS)[None, :], other=0.0)
        if DESCRIPTOR:
            weights = weight_descriptor.load([first_row, start])
        elif INPUTS % BLOCK == 0:
            weights = tl.load(weight_ptrs + start)
        else:
            weights = tl.load(weight_ptrs + start, mask=(start + columns < INPUTS)[None, :], other=0.0)
        if WEIGHTS_LEFT:
            sums += dot(weights, tl.trans(x), UPCAST)
        else:
            sums += dot(x, tl.trans(weights), UPCAST)
        if GATED:
            if DESCRIPTOR:
                up_weights = weight_descriptor.load([first_row + num_outputs, start])
            elif INPUTS % BLOCK == 0:
                up_weights = tl.load(up_ptrs + start)
            else:
                up_weights = tl.load(up_ptrs + start, mask=(start + columns < INPUTS)[None, :], other=0.0)
            if WEIGHTS_LEFT:
                up_sums += dot(up_weights, tl.trans(x), UPCAST)
            else:
                up_sums += dot(x, tl.trans(up_weights), UPCAST)
    if WEIGHTS_LEFT:
        sums = tl.trans(sums)
        up_sums = tl.trans(up_sums)
    bias_ptrs = bias_ptr + expert * halves * num_outputs + weight_rows
    if BIAS:
        sums += tl.load(bias_ptrs).to(tl.float32)[None, :]
    dtype: tl.constexpr = output_ptr.dtype.element_ty
    if GATED:
        if BIAS:
            up_sums += tl.load(bias_ptrs + num_outputs).to(tl.float32)[None, :]
        sums = gated_activation(sums, up_sums, dtype, ACTIVATION)
    output_ptrs = output_ptr + output_rows[:, None] * num_outputs + outputs[None, :]
    tl.store(output_ptrs, sums.to(dtype), mask=exists[:, None] & (outputs < num_outputs)[None, :])


@triton.jit
def _combine_kernel(
    x_ptr, shares_ptr, output_ptr, size, CHOSEN: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    sums = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(CHOSEN):
        pair = token * CHOSEN + choice
        x = tl.load(x_ptr + pair * size + columns, mask=inside, other=0.0).to(tl.float32)
        sums += x * tl.load(shares_ptr + pair)
    tl.store(output_ptr + token * size + columns, sums.to(output_ptr.dtype.element_ty), mask=inside)


def experts(x_TE: Tensor, weights: ExpertWeights, routed: Routed, activation: str, tuning: Tuning) -> Tensor:
    """See ``ExpertKernels.experts``; the packed weights are the dense ones."""
    tokens, chosen = routed.experts_TR.shape
    if not tokens:
        return torch.empty_like(x_TE)
    x_TE = x_TE.contiguous()
    routed = Routed(routed.weights_TR.contiguous(), routed.experts_TR.contiguous())
    table = tuning.expert_tiles if x_TE.element_size() == 2 else FLOAT32_TILES
    # The experts of one token are all different: to sort them would bring no two together.
    tiles = choose_tiles(table, tokens * chosen if tokens > 1 else 0, len(weights.gate_up))
    dependent = tuning.dependent_launch
    if tiles.rows == 1:
        x_YF = single_experts.up(x_TE, weights, routed, activation, tiles, dependent=dependent)
        return single_experts.down(x_YF, weights, routed, tiles, dependent=dependent)
    pairs = sort_pairs(routed.experts_TR, len(weights.gate_up), tiles.rows, gather=tuning.gather, dependent=dependent)
    x_YF = up(x_TE, weights, pairs, chosen, activation, tiles, dependent=dependent)
    x_YE = down(x_YF, weights, pairs, chosen, tiles, dependent=dependent)
    return combine(x_YE, routed.weights_TR, dependent=dependent)


def up(
    x_TE: Tensor,
    weights: ExpertWeights,
    pairs: SortedPairs,
    chosen: int,
    activation: str,
    tiles: ExpertTiles,
    *,
    dependent: bool,
) -> Tensor:
    """The gated linear of each pair, [Y, F] in the order of experts."""
    shape = (len(pairs.order_Y), weights.gate_up.shape[1] // 2)
    output_YF = torch.empty(shape, dtype=x_TE.dtype, device=x_TE.device)
    linear = (weights.gate_up, weights.gate_up_bias_XN)
    _launch(x_TE, linear, output_YF, pairs, chosen, activation, tiles.up, dependent)
    return output_YF


def down(
    x_YF: Tensor, weights: ExpertWeights, pairs: SortedPairs, chosen: int, tiles: ExpertTiles, *, dependent: bool
) -> Tensor:
    """The linear of each pair, from the order of experts to that of tokens: [Y, E]."""
    output_YE = torch.empty((len(x_YF), weights.down.shape[1]), dtype=x_YF.dtype, device=x_YF.device)
    _launch(x_YF, (weights.down, weights.down_bias_XE), output_YE, pairs, chosen, None, tiles.down, dependent)
    return output_YE


def combine(x_YE: Tensor, weights_TR: Tensor, *, dependent: bool) -> Tensor:
    """The weighted sum of each token's R rows, [T, E], in float32 and in their order."""
    tokens, chosen = weights_TR.shape
    size = x_YE.shape[1]
    output_TE = torch.empty((tokens, size), dtype=x_YE.dtype, device=x_YE.device)
    _combine_kernel[(tokens, triton.cdiv(size, _COMBINE_BLOCK))](
        x_YE,
        weights_TR,
        output_TE,
        size,
        CHOSEN=chosen,
        BLOCK=_COMBINE_BLOCK,
        DEPENDENT=dependent,
        num_warps=4,
        **launch_options(dependent),
    )
    return output_TE


def _launch(
    x: Tensor,
    linear: tuple[Tensor, Tensor | None],
    output: Tensor,
    pairs: SortedPairs,
    chosen: int,
    activation: str | None,
    tile: ProductTile,
    dependent: bool,
) -> None:
    weight_XNK, bias_XN = linear
    num_outputs, block = output.shape[1], tile.block_bytes // x.element_size()
    descriptor, has_descriptor = _weight_descriptor(weight_XNK, tile.outputs, block, wanted=tile.descriptors)
    _experts_kernel[(triton.cdiv(num_outputs, tile.outputs) * pairs.tiles,)](
        x,
        weight_XNK,
        descriptor,
        weight_XNK if bias_XN is None else bias_XN,
        output,
        pairs.order_Y,
        pairs.ends_3X,
        num_outputs,
        pairs.tiles,
        INPUTS=x.shape[1],
        NUM_EXPERTS=len(weight_XNK),
        BLOCK_EXPERTS=next_power_of_2(len(weight_XNK)),
        CHOSEN=chosen,
        BIAS=bias_XN is not None,
        ACTIVATION=activation,
        ROWS=pairs.rows,
        OUTPUTS=tile.outputs,
        BLOCK=block,
        GROUP=tile.group,
        WEIGHTS_LEFT=tile.weights_left,
        DESCRIPTOR=has_descriptor,
        UPCAST=INTERPRETED,
        DEPENDENT=dependent,
        # float32 takes twice the registers.
        num_warps=tile.warps * max(1, x.element_size() // 2),
        num_stages=tile.stages,
        **launch_options(dependent),
    )


def _weight_descriptor(weight_XNK: Tensor, outputs: int, block: int, *, wanted: bool) -> tuple[Any, bool]:
    """(descriptor, whether there is one) for tiles of the weights; without one the first is a stand-in."""
    inputs = weight_XNK.shape[2]
    if not wanted or inputs * weight_XNK.element_size() % 16:
        return weight_XNK, False
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(weight_XNK.view(-1, inputs), [outputs, block]), True
