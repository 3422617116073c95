"""The recurrences of state space models, one token after the other, in float64."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract.states import DualInputs, DualSpec, DualWeights, ScanInputs, ScanWeights


def scan(inputs: ScanInputs, weights: ScanWeights) -> tuple[Tensor, Tensor]:
    """One sequence from its beginning: outputs [T, C] and the last state [C, Z]."""
    x_TC, dt_TC, b_TZ, c_TZ, gate_TC = (part.double() for part in inputs)
    a_CZ, d_C, dt_bias_C = (part.double() for part in weights)
    state_CZ, outputs = torch.zeros_like(a_CZ), []
    for x_C, step_C, b_Z, c_Z in zip(x_TC, F.softplus(dt_TC + dt_bias_C), b_TZ, c_TZ, strict=True):
        state_CZ = (step_C[:, None] * a_CZ).exp() * state_CZ + torch.outer(step_C * x_C, b_Z)
        outputs.append(state_CZ @ c_Z + d_C * x_C)
    return torch.stack(outputs) * F.silu(gate_TC), state_CZ


def dual(inputs: DualInputs, weights: DualWeights, spec: DualSpec) -> tuple[Tensor, Tensor]:
    """One sequence from its beginning: outputs [T, H, D] and the last state [H, D, Z]."""
    a_H, d_H, dt_bias_H = (part.double() for part in weights)
    width, groups = spec.inner_width, spec.group_width
    state_HDZ, outputs = torch.zeros((spec.num_heads, spec.head_dim, spec.state_size), dtype=torch.float64), []
    for xbc_C, dt_H in zip(inputs.xbc_TC.double(), inputs.dt_TH.double(), strict=True):
        x_HD = xbc_C[:width].view(spec.num_heads, spec.head_dim)
        per_group = spec.num_heads // spec.num_groups
        b_HZ, c_HZ = (
            part.view(spec.num_groups, spec.state_size).repeat_interleave(per_group, dim=0)
            for part in xbc_C[width:].split([groups, groups])
        )
        step_H = F.softplus(dt_H + dt_bias_H).clamp(*spec.dt_limit)
        state_HDZ = (step_H * a_H).exp()[:, None, None] * state_HDZ
        state_HDZ = state_HDZ + (step_H[:, None] * x_HD)[..., None] * b_HZ[:, None]
        outputs.append((state_HDZ * c_HZ[:, None]).sum(dim=-1) + d_H[:, None] * x_HD)
    return torch.stack(outputs), state_HDZ
