"""Experts of very few tokens: each pair of token and expert reads its matrices by itself, at the speed of memory.

Nothing is sorted. The second product makes an output of all of a token's experts, so that the weighted sum needs no
launch of its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.contract.experts import ExpertWeights, Routed
from tgi_triton.activations import gated_activation
from tgi_triton.device_code import gdc_launch_dependents, gdc_wait, launch_options, next_power_of_2
from tgi_triton.expert_tiles import ExpertTiles


@triton.jit
def _single_up_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    output_ptr,
    experts_ptr,
    num_outputs,
    INPUTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    pair = tl.program_id(1)
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inside_outputs = outputs < num_outputs
    columns = tl.arange(0, BLOCK)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    expert = tl.load(experts_ptr + pair)
    rows = expert * 2 * num_outputs + outputs
    weight_ptrs = weight_ptr + rows[:, None] * INPUTS + columns[None, :]
    up_ptrs = weight_ptrs + num_outputs.to(tl.int64) * INPUTS
    x_ptrs = x_ptr + (pair // CHOSEN).to(tl.int64) * INPUTS + columns
    sums = tl.zeros([OUTPUTS, BLOCK], tl.float32)
    up_sums = tl.zeros([OUTPUTS, BLOCK], tl.float32)
    for start in tl.static_range(0, INPUTS, BLOCK):
        inside = columns < INPUTS - start
        mask = inside_outputs[:, None] & inside[None, :]
        x = tl.load(x_ptrs + start, mask=inside, other=0.0).to(tl.float32)
        weights = tl.load(weight_ptrs + start, mask=mask, other=0.0)
        up_weights = tl.load(up_ptrs + start, mask=mask, other=0.0)
        sums += weights.to(tl.float32) * x[None, :]
        up_sums += up_weights.to(tl.float32) * x[None, :]
    result = tl.sum(sums, axis=1)
    up = tl.sum(up_sums, axis=1)
    if BIAS:
        result += tl.load(bias_ptr + rows, mask=inside_outputs, other=0.0).to(tl.float32)
        up += tl.load(bias_ptr + rows + num_outputs, mask=inside_outputs, other=0.0).to(tl.float32)
    result = gated_activation(result, up, output_ptr.dtype.element_ty, ACTIVATION)
    output_ptrs = output_ptr + pair.to(tl.int64) * num_outputs + outputs
    tl.store(output_ptrs, result.to(output_ptr.dtype.element_ty), mask=inside_outputs)


@triton.jit
def _single_down_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    output_ptr,
    experts_ptr,
    shares_ptr,
    num_outputs,
    INPUTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    BLOCK_CHOSEN: tl.constexpr,
    BIAS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    token = tl.program_id(1)
    # A row of the tile is one output of one of the token's experts.
    tile_rows = tl.arange(0, OUTPUTS * BLOCK_CHOSEN)
    outputs = tl.program_id(0) * OUTPUTS + tile_rows // BLOCK_CHOSEN
    choices = tile_rows % BLOCK_CHOSEN
    exists = (outputs < num_outputs) & (choices < CHOSEN)
    columns = tl.arange(0, BLOCK)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    pairs = token.to(tl.int64) * CHOSEN + choices
    experts = tl.load(experts_ptr + pairs, mask=exists, other=0)
    rows = experts * num_outputs + outputs
    weight_ptrs = weight_ptr + rows[:, None] * INPUTS + columns[None, :]
    x_ptrs = x_ptr + pairs[:, None] * INPUTS + columns[None, :]
    sums = tl.zeros([OUTPUTS * BLOCK_CHOSEN, BLOCK], tl.float32)
    for start in range(0, INPUTS, BLOCK):
        mask = exists[:, None] & (columns < INPUTS - start)[None, :]
        weights = tl.load(weight_ptrs + start, mask=mask, other=0.0)
        sums += weights.to(tl.float32) * tl.load(x_ptrs + start, mask=mask, other=0.0).to(tl.float32)
    results = tl.sum(sums, axis=1)
    if BIAS:
        results += tl.load(bias_ptr + rows, mask=exists, other=0.0).to(tl.float32)
    # Rounded as an expert's linear is.
    dtype: tl.constexpr = output_ptr.dtype.element_ty
    shares = tl.load(shares_ptr + pairs, mask=exists, other=0.0)
    results = tl.reshape(results.to(dtype).to(tl.float32) * shares, [OUTPUTS, BLOCK_CHOSEN])
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    output_ptrs = output_ptr + token.to(tl.int64) * num_outputs + outputs
    tl.store(output_ptrs, tl.sum(results, axis=1).to(dtype), mask=outputs < num_outputs)


def up(
    x_TE: Tensor, weights: ExpertWeights, routed: Routed, activation: str, tiles: ExpertTiles, *, dependent: bool
) -> Tensor:
    """The gated linear of each pair, [T * R, F] in the order of pairs."""
    gate_up_XNE, bias_XN = weights.gate_up, weights.gate_up_bias_XN
    tile, pairs, num_outputs = tiles.up, routed.experts_TR.numel(), gate_up_XNE.shape[1] // 2
    output_YF = torch.empty((pairs, num_outputs), dtype=x_TE.dtype, device=x_TE.device)
    _single_up_kernel[(triton.cdiv(num_outputs, tile.outputs), pairs)](
        x_TE,
        gate_up_XNE,
        gate_up_XNE if bias_XN is None else bias_XN,
        output_YF,
        routed.experts_TR,
        num_outputs,
        INPUTS=x_TE.shape[1],
        CHOSEN=routed.experts_TR.shape[1],
        BIAS=bias_XN is not None,
        ACTIVATION=activation,
        OUTPUTS=tile.outputs,
        BLOCK=min(tile.block_bytes // x_TE.element_size(), next_power_of_2(x_TE.shape[1])),
        DEPENDENT=dependent,
        num_warps=tile.warps,
        **launch_options(dependent),
    )
    return output_YF


def down(x_YF: Tensor, weights: ExpertWeights, routed: Routed, tiles: ExpertTiles, *, dependent: bool) -> Tensor:
    """The weighted sum of each token's down projections, [T, E]."""
    down_XEF, bias_XE = weights.down, weights.down_bias_XE
    (tokens, chosen), num_outputs = routed.experts_TR.shape, down_XEF.shape[1]
    tile = tiles.down
    output_TE = torch.empty((tokens, num_outputs), dtype=x_YF.dtype, device=x_YF.device)
    _single_down_kernel[(triton.cdiv(num_outputs, tile.outputs), tokens)](
        x_YF,
        down_XEF,
        down_XEF if bias_XE is None else bias_XE,
        output_TE,
        routed.experts_TR,
        routed.weights_TR,
        num_outputs,
        INPUTS=x_YF.shape[1],
        CHOSEN=chosen,
        BLOCK_CHOSEN=next_power_of_2(chosen),
        BIAS=bias_XE is not None,
        OUTPUTS=tile.outputs,
        BLOCK=min(tile.block_bytes // x_YF.element_size(), next_power_of_2(x_YF.shape[1])),
        DEPENDENT=dependent,
        num_warps=tile.warps,
        **launch_options(dependent),
    )
    return output_TE
