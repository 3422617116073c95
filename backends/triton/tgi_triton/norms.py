"""RMS norm, alone and fused with the residual sum, and layer norm."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_triton.device_code import gdc_launch_dependents, gdc_wait, launch_options, next_power_of_2


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    output_ptr,
    x_stride,
    size,
    eps,
    offset,
    ADD: tl.constexpr,
    OFFSET: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0)
    if ADD:
        residual = tl.load(residual_ptr + row * size + columns, mask=inside, other=0.0)
        total = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)
        tl.store(residual_ptr + row * size + columns, total, mask=inside)
        x = total
    x_float = x.to(tl.float32)
    normed = x_float * tl.rsqrt(tl.sum(x_float * x_float) / size + eps)
    if OFFSET:
        output = normed * (weight + offset)
    else:
        output = normed.to(x.dtype).to(tl.float32) * weight
    tl.store(output_ptr + row * size + columns, output.to(x.dtype), mask=inside)


@triton.jit
def _layer_norm_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    output_ptr,
    x_stride,
    size,
    eps,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        bias = tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0)
    x_float = x.to(tl.float32)
    # The variance of what is left without the mean: the difference of two large sums would lose its digits.
    centred = tl.where(inside, x_float - tl.sum(x_float) / size, 0.0)
    output = centred * tl.rsqrt(tl.sum(centred * centred) / size + eps) * weight
    if BIAS:
        output += bias
    tl.store(output_ptr + row * size + columns, output.to(x.dtype), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float, *, dependent: bool) -> Tensor:
    """See ``Kernels.rms_norm``."""
    size = x.shape[-1]
    rows = x.reshape(-1, size)
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(rows, rows, weight, output, eps, offset, add=False, dependent=dependent)
    return output


def add_rms_norm(
    x_TE: Tensor, residual_TE: Tensor, weight_E: Tensor, eps: float, offset: float, *, dependent: bool
) -> tuple[Tensor, Tensor]:
    """See ``Kernels.add_rms_norm``; overwrites both inputs."""
    _launch(x_TE, residual_TE, weight_E, x_TE, eps, offset, add=True, dependent=dependent)
    return x_TE, residual_TE


def layer_norm(x_TE: Tensor, weight_E: Tensor, bias_E: Tensor | None, eps: float, *, dependent: bool) -> Tensor:
    """See ``Kernels.layer_norm``."""
    rows, size = x_TE.shape
    block = next_power_of_2(size)
    output_TE = torch.empty((rows, size), dtype=x_TE.dtype, device=x_TE.device)
    if rows:
        _layer_norm_kernel[(rows,)](
            x_TE,
            weight_E,
            weight_E if bias_E is None else bias_E,
            output_TE,
            x_TE.stride(0),
            size,
            eps,
            BIAS=bias_E is not None,
            BLOCK=block,
            DEPENDENT=dependent,
            num_warps=_warps(block),
            **launch_options(dependent),
        )
    return output_TE


def _launch(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    output: Tensor,
    eps: float,
    offset: float,
    *,
    add: bool,
    dependent: bool,
) -> None:
    rows, size = x.shape
    block = next_power_of_2(size)
    if rows:
        _rms_norm_kernel[(rows,)](
            x,
            residual,
            weight,
            output,
            x.stride(0),
            size,
            eps,
            offset,
            ADD=add,
            OFFSET=offset != 0,
            BLOCK=block,
            DEPENDENT=dependent,
            num_warps=_warps(block),
            **launch_options(dependent),
        )


def _warps(block: int) -> int:
    """Warps of a program that takes a row of ``block`` numbers: half a thousand each, and a thousand in long rows."""
    return min(16, max(1, block // (512 if block <= 2048 else 1024)))
