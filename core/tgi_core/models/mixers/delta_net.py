"""A gated delta net in place of attention: a short convolution, then a memory of each head that queries read."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract.kernels import Kernels
from tgi_core.contract.states import ConvWeights, DeltaGates
from tgi_core.models.linear import Linear
from tgi_core.models.model import SlotState
from tgi_core.models.names import DeltaNetNames
from tgi_core.models.spec import DeltaNetSpec
from tgi_core.models.step import Step
from tgi_core.models.weight_builder import WeightBuilder


class DeltaNetWeights(NamedTuple):
    """``inputs`` makes, in this order, queries, keys and values, their output's gates, and the heads' b and a."""

    inputs: Linear
    conv: ConvWeights
    a_log_H: Tensor
    dt_bias_H: Tensor
    norm_U: Tensor
    o: Linear


def load_delta_net(
    builder: WeightBuilder, spec: DeltaNetSpec, names: DeltaNetNames, hidden_size: int, layer: int
) -> DeltaNetWeights:
    """The delta net of one layer."""
    rule = spec.rule
    heads, values = rule.num_heads, rule.value_width
    inputs = [name.format(layer) for name in names.inputs]
    if names.by_key_head:
        weight = _arrange(
            builder.weight(inputs[:1], (spec.channels + values,), hidden_size),
            builder.weight(inputs[1:], (2 * heads,), hidden_size),
            spec,
        )
    else:
        weight = builder.weight(inputs, (spec.channels, values, heads, heads), hidden_size)
    conv_C1W = builder.take(f"{names.conv.format(layer)}.weight", (spec.channels, 1, spec.taps))
    return DeltaNetWeights(
        inputs=Linear(builder.kernels.pack_linear(weight)),
        conv=ConvWeights(conv_C1W.squeeze(1)),
        a_log_H=builder.take(names.a_log.format(layer), (heads,), torch.float32),
        dt_bias_H=builder.take(names.dt_bias.format(layer), (heads,), torch.float32),
        norm_U=builder.take(f"{names.norm.format(layer)}.weight", (rule.value_dim,)),
        o=builder.linear((names.o.format(layer),), (hidden_size,), values, bias=False),
    )


def _arrange(qkvz: Tensor, ba: Tensor, spec: DeltaNetSpec) -> Tensor:
    """Rows that are stored key head by key head, in the order of ``DeltaNetWeights.inputs``."""
    rule = spec.rule
    served = rule.num_heads // rule.num_key_heads
    values = served * rule.value_dim
    qkvz_KXE = qkvz.view(rule.num_key_heads, -1, qkvz.shape[1])
    ba_KXE = ba.view(rule.num_key_heads, -1, ba.shape[1])
    parts = (
        *torch.split(qkvz_KXE, [rule.key_dim, rule.key_dim, values, values], dim=1),
        *torch.split(ba_KXE, [served, served], dim=1),
    )
    return torch.cat([part.flatten(0, 1) for part in parts])


def delta_net_states(spec: DeltaNetSpec) -> tuple[SlotState, SlotState]:
    """What one layer keeps of a slot: the convolution's last inputs and the heads' memories."""
    rule = spec.rule
    return (
        SlotState((spec.taps - 1, spec.channels)),
        SlotState((rule.num_heads, rule.key_dim, rule.value_dim), torch.float32),
    )


class DeltaNet:
    """See ``Mixer``. Source: Yang et al. 2024, "Gated Delta Networks".

    Args:
        spec: the model's delta nets.
        weights: of this layer.
        kernels: every operation.
        activation: after the convolution.
        norm_eps: of the norm over each head's output.
        first_state: index of the layer's first state; the second follows it.
    """

    def __init__(
        self,
        spec: DeltaNetSpec,
        weights: DeltaNetWeights,
        kernels: Kernels,
        *,
        activation: str,
        norm_eps: float,
        first_state: int,
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._kernels = kernels
        self._activation = activation
        self._norm_eps = norm_eps
        self._first_state = first_state

    def __call__(self, x_TE: Tensor, step: Step) -> Tensor:
        spec, weights, kernels = self._spec, self._weights, self._kernels
        rule = spec.rule
        conv_SJC, memory_SHDU = step.states[self._first_state], step.states[self._first_state + 1]
        inputs_TX = kernels.linear(x_TE, weights.inputs.weight, weights.inputs.bias)
        sizes = [spec.channels, rule.value_width, rule.num_heads, rule.num_heads]
        qkv_TC, gate_TX, b_TH, a_TH = torch.split(inputs_TX, sizes, dim=-1)
        qkv_TC = kernels.causal_conv(qkv_TC, weights.conv, conv_SJC, step.rows, self._activation)
        gates = DeltaGates(a_TH, b_TH, weights.a_log_H, weights.dt_bias_H)
        output_THU = kernels.gated_delta_rule(qkv_TC, gates, memory_SHDU, step.rows, rule)
        output_THU = kernels.rms_norm(output_THU, weights.norm_U, self._norm_eps, 0.0)
        output_TX = (output_THU.flatten(1) * F.silu(gate_TX.float())).to(x_TE.dtype)
        return kernels.linear(output_TX, weights.o.weight, weights.o.bias)
