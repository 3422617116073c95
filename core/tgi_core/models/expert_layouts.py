"""Brings the experts of a layer from any of the layouts of checkpoints into [X, 2F, E] and [X, E, F]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tgi_core.contract.experts import ExpertWeights
from tgi_core.models.names import ExpertLayout, ExpertNames
from tgi_core.models.spec import ExpertsSpec
from tgi_core.models.weight_builder import WeightBuilder


def take_experts(
    spec: ExpertsSpec, names: ExpertNames, hidden_size: int, *, layer: int, builder: WeightBuilder
) -> ExpertWeights:
    """The packed experts of a layer."""
    count, inner = spec.num_experts, spec.intermediate_size
    take, pack = builder.take, builder.kernels.pack_experts
    up_names, down_name = names.gate_up, names.down
    gate_up_bias_XN = down_bias_XE = None
    if names.stacked is not None and builder.source.has(names.stacked[0].format(layer)):
        gate_up_XNE = take(names.stacked[0].format(layer), (count, 2 * inner, hidden_size))
        down_XEF = take(names.stacked[1].format(layer), (count, hidden_size, inner))
        return ExpertWeights(pack(gate_up_XNE), None, pack(down_XEF), None)
    match names.layout:
        case ExpertLayout.EACH:
            up, down = (inner, hidden_size), (hidden_size, inner)
            experts = range(count)
            ups = ([take(f"{name.format(layer, expert)}.weight", up) for name in up_names] for expert in experts)
            downs = ([take(f"{down_name.format(layer, expert)}.weight", down)] for expert in experts)
            gate_up_XNE, down_XEF = _stack(count, ups), _stack(count, downs)
        case ExpertLayout.STACKED:
            gate_up_XNE = take(f"{up_names[0].format(layer)}.weight", (count, 2 * inner, hidden_size))
            down_XEF = take(f"{down_name.format(layer)}.weight", (count, hidden_size, inner))
        case ExpertLayout.FLAT:
            gate_XFE, up_XFE, down_XFE = (
                take(name.format(layer), (count * inner, hidden_size)).view(count, inner, hidden_size)
                for name in (*up_names, down_name)
            )
            gate_up_XNE = _stack(count, zip(gate_XFE, up_XFE, strict=True))
            down_XEF = _stack(count, ([down_FE.t()] for down_FE in down_XFE))
        case ExpertLayout.TRANSPOSED:
            ups_EN = builder.slices(up_names[0].format(layer), (count, hidden_size, 2 * inner))
            gate_up_XNE = _stack(count, ([up_EN.t()] for up_EN in ups_EN))
            downs_FE = builder.slices(down_name.format(layer), (count, inner, hidden_size))
            down_XEF = _stack(count, ([down_FE.t()] for down_FE in downs_FE))
        case ExpertLayout.INTERLEAVED:
            up_name, down_name = up_names[0].format(layer), down_name.format(layer)
            ups_EN = builder.slices(up_name, (count, hidden_size, 2 * inner))
            gate_up_XNE = _stack(count, ((up_EN.t()[::2], up_EN.t()[1::2]) for up_EN in ups_EN))
            downs_FE = builder.slices(down_name, (count, inner, hidden_size))
            down_XEF = _stack(count, ([down_FE.t()] for down_FE in downs_FE))
            if spec.expert_bias:
                bias_XN = take(f"{up_name}_bias", (count, 2 * inner))
                gate_up_bias_XN = torch.cat((bias_XN[:, ::2], bias_XN[:, 1::2]), dim=1)
                down_bias_XE = take(f"{down_name}_bias", (count, hidden_size))
    return ExpertWeights(pack(gate_up_XNE), gate_up_bias_XN, pack(down_XEF), down_bias_XE)


def _stack(count: int, experts: Iterable[Sequence[Tensor]]) -> Tensor:
    """For each of ``count`` experts its parts, one below the other: [X, sum of rows, columns].

    Filled as they are read, so that no more than one expert is held twice.
    """
    stacked: Tensor | None = None
    for expert, parts in enumerate(experts):
        if stacked is None:
            stacked = parts[0].new_empty((count, sum(map(len, parts)), parts[0].shape[1]))
        start = 0
        for part in parts:
            stacked[expert, start : start + len(part)] = part
            start += len(part)
    assert stacked is not None, "there is at least one expert"
    return stacked
