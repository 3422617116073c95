"""Gated activations."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_triton.device_code import gdc_launch_dependents, gdc_wait, launch_options, tanh

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
_BLOCK = 2048


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """The activation of float32 values."""
    if ACTIVATION == "silu":
        result = x * tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        result = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    else:
        result = 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    return result


@triton.jit
def gated_activation(gate, up, dtype: tl.constexpr, ACTIVATION: tl.constexpr):
    """Both float32, rounded where a projection and an activation of their own would round."""
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
def _activation_mul_kernel(
    x_ptr, output_ptr, size, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    gate = tl.load(x_ptr + row * 2 * size + columns, mask=inside, other=0.0)
    up = tl.load(x_ptr + row * 2 * size + size + columns, mask=inside, other=0.0)
    activated = activate(gate.to(tl.float32), ACTIVATION).to(gate.dtype).to(tl.float32)
    tl.store(output_ptr + row * size + columns, (activated * up.to(tl.float32)).to(gate.dtype), mask=inside)


def activation_mul(x_T2F: Tensor, activation: str, *, dependent: bool) -> Tensor:
    """See ``Kernels.activation_mul``; raises ValueError for an activation the contract does not name."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"unknown activation `{activation}`")
    rows, size = x_T2F.shape[0], x_T2F.shape[1] // 2
    output_TF = torch.empty((rows, size), dtype=x_T2F.dtype, device=x_T2F.device)
    if rows:
        _activation_mul_kernel[(rows, triton.cdiv(size, _BLOCK))](
            x_T2F,
            output_TF,
            size,
            ACTIVATION=activation,
            BLOCK=_BLOCK,
            DEPENDENT=dependent,
            num_warps=4,
            **launch_options(dependent),
        )
    return output_TF
