"""Linears of one row: each weight is read once, in full lines, and the time is that of reading it.

A program makes a few outputs and walks along the inputs. With an activation it makes the same outputs of both halves of
a merged projection and joins them, so that the gate needs no launch of its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_triton.activations import activate
from tgi_triton.device_code import gdc_launch_dependents, gdc_wait, launch_options, next_power_of_2
from tgi_triton.tuning import Tuning


@triton.jit
def _gemv_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    output_ptr,
    num_outputs,
    INPUTS: tl.constexpr,
    BIAS: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inside_outputs = outputs < num_outputs
    columns = tl.arange(0, BLOCK)
    weight_ptrs = weight_ptr + outputs.to(tl.int64)[:, None] * INPUTS + columns[None, :]
    inside = inside_outputs[:, None] & (columns < INPUTS)[None, :]
    # Weights do not depend on the kernel before: the first of them are on their way while it still runs.
    weights = tl.load(weight_ptrs, mask=inside, other=0.0)
    if GATED:
        up_ptrs = weight_ptrs + num_outputs.to(tl.int64) * INPUTS
        up_weights = tl.load(up_ptrs, mask=inside, other=0.0)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    x = tl.load(x_ptr + columns, mask=columns < INPUTS, other=0.0).to(tl.float32)
    sums = weights.to(tl.float32) * x[None, :]
    if GATED:
        up_sums = up_weights.to(tl.float32) * x[None, :]
    for start in range(BLOCK, INPUTS, BLOCK):
        inside_inputs = start + columns < INPUTS
        inside = inside_outputs[:, None] & inside_inputs[None, :]
        x = tl.load(x_ptr + start + columns, mask=inside_inputs, other=0.0).to(tl.float32)
        weights = tl.load(weight_ptrs + start, mask=inside, other=0.0)
        sums += weights.to(tl.float32) * x[None, :]
        if GATED:
            up_weights = tl.load(up_ptrs + start, mask=inside, other=0.0)
            up_sums += up_weights.to(tl.float32) * x[None, :]
    result = tl.sum(sums, axis=1)
    if BIAS:
        result += tl.load(bias_ptr + outputs, mask=inside_outputs, other=0.0).to(tl.float32)
    dtype = output_ptr.dtype.element_ty
    if GATED:
        up = tl.sum(up_sums, axis=1)
        if BIAS:
            up += tl.load(bias_ptr + num_outputs + outputs, mask=inside_outputs, other=0.0).to(tl.float32)
        # Rounded where a projection and an activation of their own would round.
        activated = activate(result.to(dtype).to(tl.float32), ACTIVATION).to(dtype).to(tl.float32)
        result = activated * up.to(dtype).to(tl.float32)
    tl.store(output_ptr + outputs, result.to(dtype), mask=inside_outputs)


def gemv(x_1K: Tensor, weight_NK: Tensor, bias_N: Tensor | None, activation: str | None, tuning: Tuning) -> Tensor:
    """``x @ weight.T + bias`` of one row; with an activation the gated product of both halves, [1, N / 2]."""
    inputs = x_1K.shape[1]
    gated = activation is not None
    num_outputs = weight_NK.shape[0] // (2 if gated else 1)
    output_1N = torch.empty((1, num_outputs), dtype=x_1K.dtype, device=x_1K.device)
    block = min(tuning.gemv_tile, next_power_of_2(inputs))
    outputs = max(1, tuning.gemv_tile // (block * (2 if gated else 1)))
    _gemv_kernel[(triton.cdiv(num_outputs, outputs),)](
        x_1K,
        weight_NK,
        weight_NK if bias_N is None else bias_N,
        output_1N,
        num_outputs,
        INPUTS=inputs,
        BIAS=bias_N is not None,
        GATED=gated,
        ACTIVATION=activation,
        OUTPUTS=outputs,
        BLOCK=block,
        DEPENDENT=tuning.dependent_launch,
        num_warps=tuning.gemv_warps,
        **launch_options(tuning.dependent_launch),
    )
    return output_1N
