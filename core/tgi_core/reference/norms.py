"""Norms and activations."""

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
    if activation == "swiglu_clamped":
        gate_TF, up_TF = gate_TF.clamp(max=7.0), up_TF.clamp(-7.0, 7.0)
        return gate_TF * torch.sigmoid(gate_TF * 1.702) * (up_TF + 1)
    return activate(gate_TF, activation) * up_TF


def activate(x_TF: Tensor, activation: str) -> Tensor:
    """The activation by its name; raises ValueError for one the contract does not name."""
    match activation:
        case "silu":
            return F.silu(x_TF)
        case "gelu":
            return F.gelu(x_TF)
        case "gelu_tanh":
            return F.gelu(x_TF, approximate="tanh")
        case "relu":
            return F.relu(x_TF)
        case "relu2":
            return F.relu(x_TF).square()
    raise ValueError(f"unknown activation `{activation}`")
