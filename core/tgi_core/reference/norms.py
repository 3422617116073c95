"""Norms and gated activations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """Root mean square norm over the last axis; see ``Kernels.rms_norm`` for the two orders of rounding."""
    x_float = x.float()
    normed = x_float * torch.rsqrt(x_float.square().mean(-1, keepdim=True) + eps)
    if offset:
        return (normed * (weight.float() + offset)).to(x.dtype)
    return normed.to(x.dtype) * weight


def layer_norm(x_TE: Tensor, weight_E: Tensor, bias_E: Tensor | None, eps: float) -> Tensor:
    """Layer norm over the last axis, in float32."""
    bias = None if bias_E is None else bias_E.float()
    return F.layer_norm(x_TE.float(), weight_E.shape, weight_E.float(), bias, eps).to(x_TE.dtype)


def activation_mul(x_T2F: Tensor, activation: str) -> Tensor:
    """``act(gate) * up`` of a merged projection; raises ValueError for an activation the contract does not name."""
    gate_TF, up_TF = x_T2F.chunk(2, dim=-1)
    match activation:
        case "silu":
            return F.silu(gate_TF) * up_TF
        case "gelu":
            return F.gelu(gate_TF) * up_TF
        case "gelu_tanh":
            return F.gelu(gate_TF, approximate="tanh") * up_TF
    raise ValueError(f"unknown activation `{activation}`")
