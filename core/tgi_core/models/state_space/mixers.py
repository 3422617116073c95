"""What a layer of a state space model does: projection, convolution, recurrence, gate, projection."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract.kernels import Kernels
from tgi_core.contract.states import ConvWeights, DualInputs, DualSpec, DualWeights, ScanInputs, ScanWeights, StepRows
from tgi_core.models.linear import Linear
from tgi_core.models.state_space.spec import ScanMixerSpec, StateSpaceSpec
from tgi_core.models.weight_builder import WeightBuilder


class SlotStates(NamedTuple):
    """What a layer keeps of all slots: the convolution's last inputs and the recurrence's states."""

    conv_SJC: Tensor
    recurrence_SX: Tensor


class StateMixer(Protocol):
    """One layer's mixer, with its weights."""

    def __call__(self, x_TE: Tensor, states: SlotStates, rows: StepRows) -> Tensor:
        """Normed hidden states of all tokens -> what the layer adds to the residual stream, both [T, E]."""


def load_mixer(builder: WeightBuilder, spec: StateSpaceSpec, layer: int) -> StateMixer:
    """The mixer of one layer.

    Raises:
        StartupError: a tensor is missing or of another shape.
    """
    prefix = f"backbone.layers.{layer}.mixer"
    if isinstance(spec.mixer, DualSpec):
        return DualMixer(builder, spec, spec.mixer, prefix)
    return ScanMixer(builder, spec, spec.mixer, prefix)


class ScanMixer:
    """Mamba's. Source: Gu and Dao 2023."""

    def __init__(self, builder: WeightBuilder, spec: StateSpaceSpec, mixer: ScanMixerSpec, prefix: str) -> None:
        inner, size = spec.inner_size, mixer.state_size
        self._kernels = builder.kernels
        self._mixer = mixer
        self._conv = _load_conv(builder, spec, prefix)
        self._in = builder.linear((f"{prefix}.in_proj",), (2 * inner,), spec.hidden_size, bias=spec.linear_bias)
        self._x = builder.linear((f"{prefix}.x_proj",), (mixer.rank + 2 * size,), inner, bias=False)
        self._dt = builder.linear((f"{prefix}.dt_proj",), (inner,), mixer.rank, bias=False)
        self._scan = ScanWeights(
            a_CZ=_rates(builder, f"{prefix}.A_log", (inner, size)),
            d_C=builder.take(f"{prefix}.D", (inner,), torch.float32),
            dt_bias_C=builder.take(f"{prefix}.dt_proj.bias", (inner,), torch.float32),
        )
        self._out = builder.linear((f"{prefix}.out_proj",), (spec.hidden_size,), inner, bias=spec.linear_bias)
        self._ones = [builder.source.ones((width,)) for width in (mixer.rank, size, size)]

    def __call__(self, x_TE: Tensor, states: SlotStates, rows: StepRows) -> Tensor:
        kernels, mixer = self._kernels, self._mixer
        x_TC, gate_TC = _linear(kernels, x_TE, self._in).chunk(2, dim=-1)
        x_TC = kernels.causal_conv(x_TC, self._conv, states.conv_SJC, rows, "silu")
        low_TR, b_TZ, c_TZ = torch.split(
            _linear(kernels, x_TC, self._x), [mixer.rank, mixer.state_size, mixer.state_size], dim=-1
        )
        if mixer.norm_eps is not None:
            low_TR, b_TZ, c_TZ = (
                kernels.rms_norm(part.contiguous(), ones, mixer.norm_eps, 0.0)
                for part, ones in zip((low_TR, b_TZ, c_TZ), self._ones, strict=True)
            )
        dt_TC = _linear(kernels, low_TR.contiguous(), self._dt)
        inputs = ScanInputs(x_TC, dt_TC, b_TZ, c_TZ, gate_TC)
        return _linear(kernels, kernels.selective_scan(inputs, self._scan, states.recurrence_SX, rows), self._out)


class DualMixer:
    """Mamba 2's: one projection to all that it reads, and a norm behind the gate. Source: Dao and Gu 2024."""

    def __init__(self, builder: WeightBuilder, spec: StateSpaceSpec, mixer: DualSpec, prefix: str) -> None:
        inner, heads = spec.inner_size, mixer.num_heads
        self._kernels = builder.kernels
        self._spec = spec
        self._mixer = mixer
        self._conv = _load_conv(builder, spec, prefix)
        self._in = builder.linear(
            (f"{prefix}.in_proj",), (inner + spec.conv_width + heads,), spec.hidden_size, bias=spec.linear_bias
        )
        self._dual = DualWeights(
            a_H=_rates(builder, f"{prefix}.A_log", (heads,)),
            d_H=builder.take(f"{prefix}.D", (heads,), torch.float32),
            dt_bias_H=builder.take(f"{prefix}.dt_bias", (heads,), torch.float32),
        )
        self._norm_C = builder.take(f"{prefix}.norm.weight", (inner,))
        self._ones = builder.source.ones((inner // mixer.num_groups,))
        self._out = builder.linear((f"{prefix}.out_proj",), (spec.hidden_size,), inner, bias=spec.linear_bias)

    def __call__(self, x_TE: Tensor, states: SlotStates, rows: StepRows) -> Tensor:
        kernels, spec, mixer = self._kernels, self._spec, self._mixer
        gate_TC, xbc_TX, dt_TH = torch.split(
            _linear(kernels, x_TE, self._in), [spec.inner_size, spec.conv_width, mixer.num_heads], dim=-1
        )
        xbc_TX = kernels.causal_conv(xbc_TX, self._conv, states.conv_SJC, rows, "silu")
        mixed_THD = kernels.state_space_dual(DualInputs(xbc_TX, dt_TH), self._dual, states.recurrence_SX, rows, mixer)
        gated_TC = mixed_THD.flatten(1) * F.silu(gate_TC)
        return _linear(kernels, self._norm(gated_TC), self._out)

    def _norm(self, x_TC: Tensor) -> Tensor:
        """Norm each group of heads by itself."""
        groups, eps = self._mixer.num_groups, self._spec.norm_eps
        if groups == 1:
            return self._kernels.rms_norm(x_TC, self._norm_C, eps, 0.0)
        normed_TGX = self._kernels.rms_norm(x_TC.view(len(x_TC), groups, -1), self._ones, eps, 0.0)
        return normed_TGX.flatten(1) * self._norm_C


def _load_conv(builder: WeightBuilder, spec: StateSpaceSpec, prefix: str) -> ConvWeights:
    width = spec.conv_width
    weight_C1W = builder.take(f"{prefix}.conv1d.weight", (width, 1, spec.taps))
    bias_C = builder.take(f"{prefix}.conv1d.bias", (width,)) if spec.conv_bias else None
    return ConvWeights(weight_C1W.squeeze(1), bias_C)


def _rates(builder: WeightBuilder, name: str, shape: tuple[int, ...]) -> Tensor:
    """What checkpoints keep as the logarithm of a positive number stands for its negative."""
    return -builder.take(name, shape, torch.float32).exp()


def _linear(kernels: Kernels, x_TK: Tensor, linear: Linear) -> Tensor:
    return kernels.linear(x_TK, linear.weight, linear.bias)
