"""Brings the experts of a layer from any of the layouts of checkpoints into [X, 2F, E] and [X, E, F]."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tgi_core.contract.experts import ExpertWeights
from tgi_core.contract.kernels import Kernels
from tgi_core.models.spec import ExpertLayout, ExpertNames, ExpertsSpec

Take = Callable[[str, tuple[int, ...]], Tensor]
"""Takes a tensor of a shape by its name."""


def take_experts(
    spec: ExpertsSpec, names: ExpertNames, hidden_size: int, *, layer: int, take: Take, kernels: Kernels
) -> ExpertWeights:
    """The packed experts of a layer."""
    count, inner = spec.num_experts, spec.intermediate_size
    gate_up_bias_XN = down_bias_XE = None
    match names.layout:
        case ExpertLayout.EACH:
            gate_up_XNE, down_XEF = _take_each(spec, names, hidden_size, layer, take)
        case ExpertLayout.STACKED:
            gate_up_XNE = take(f"{names.gate_up[0].format(layer)}.weight", (count, 2 * inner, hidden_size))
            down_XEF = take(f"{names.down.format(layer)}.weight", (count, hidden_size, inner))
        case ExpertLayout.FLAT:
            gate, up, down = (
                take(name.format(layer), (count * inner, hidden_size)).view(count, inner, hidden_size)
                for name in (*names.gate_up, names.down)
            )
            gate_up_XNE, down_XEF = torch.cat((gate, up), dim=1), down.transpose(1, 2).contiguous()
        case ExpertLayout.INTERLEAVED:
            up_name, down_name = names.gate_up[0].format(layer), names.down.format(layer)
            gate_up_XNE = _by_turns(take(up_name, (count, hidden_size, 2 * inner)).transpose(1, 2))
            down_XEF = take(down_name, (count, inner, hidden_size)).transpose(1, 2).contiguous()
            if spec.expert_bias:
                gate_up_bias_XN = _by_turns(take(f"{up_name}_bias", (count, 2 * inner)))
                down_bias_XE = take(f"{down_name}_bias", (count, hidden_size))
    return ExpertWeights(
        kernels.pack_experts(gate_up_XNE), gate_up_bias_XN, kernels.pack_experts(down_XEF), down_bias_XE
    )


def _take_each(
    spec: ExpertsSpec, names: ExpertNames, hidden_size: int, layer: int, take: Take
) -> tuple[Tensor, Tensor]:
    inner = spec.intermediate_size
    gate_up_XNE = down_XEF = None
    for expert in range(spec.num_experts):
        parts = [take(f"{name.format(layer, expert)}.weight", (inner, hidden_size)) for name in names.gate_up]
        down = take(f"{names.down.format(layer, expert)}.weight", (hidden_size, inner))
        if gate_up_XNE is None or down_XEF is None:
            # Filled as they are read: no more than one expert is held twice.
            gate_up_XNE = down.new_empty((spec.num_experts, 2 * inner, hidden_size))
            down_XEF = down.new_empty((spec.num_experts, hidden_size, inner))
        torch.cat(parts, out=gate_up_XNE[expert])
        down_XEF[expert] = down
    assert gate_up_XNE is not None, "there is at least one expert"
    assert down_XEF is not None
    return gate_up_XNE, down_XEF


def _by_turns(rows: Tensor) -> Tensor:
    """Rows [X, 2F, ...] of gate and up by turns: those of the gate, then those of up."""
    return torch.cat((rows[:, ::2], rows[:, 1::2]), dim=1)
