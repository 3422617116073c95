"""A state space model: what a shard asks of it before it is loaded, and the loaded model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import AttentionSpec, Kernels
from tgi_core.models.family import ModuleArchitecture
from tgi_core.models.hf_config import HFConfig
from tgi_core.models.linear import Linear, NormWeights
from tgi_core.models.model import Loaded, LoadOptions, SlotState
from tgi_core.models.opening import open_weights
from tgi_core.models.ropes import RopeSpec
from tgi_core.models.spec import Norm
from tgi_core.models.state_space.mixers import SlotStates, StateMixer, load_mixer
from tgi_core.models.state_space.spec import StateSpaceSpec
from tgi_core.models.step import Step
from tgi_core.models.weight_builder import WeightBuilder

LONGEST = 1 << 20
"""Tokens of a sequence. The model has no positions and no end; what bounds it is the table of a slot's tokens."""


class StateSpaceModel:
    """See ``Model``: no attention, and two states a layer."""

    reason = ""
    attention: tuple[AttentionSpec, ...] = ()
    group_of_layer: tuple[int, ...] = ()
    ropes: tuple[RopeSpec, ...] = ()
    max_positions = LONGEST

    def __init__(self, architecture: ModuleArchitecture, model_dir: Path, spec: StateSpaceSpec) -> None:
        self._architecture = architecture
        self._model_dir = model_dir
        self.spec = spec
        self.path = architecture.path
        self.vocab_size = spec.vocab_size
        conv = SlotState((spec.taps - 1, spec.conv_width))
        # Sums over a whole sequence, which a shorter type would round away.
        recurrence = SlotState(spec.state_shape, torch.float32)
        self.states: tuple[SlotState, ...] = (conv, recurrence) * spec.num_layers

    def records(self, kernels: Kernels) -> bool:
        """Whether ``kernels`` can be recorded with all that the model needs of them."""
        return kernels.captures_states

    def load(self, options: LoadOptions) -> Loaded:
        """Read and pack the weights."""
        source = open_weights(self._model_dir, self._architecture, options)
        builder = WeightBuilder(source, options.kernels)
        weights = load_weights(builder, self.spec)
        source.finish()
        return Loaded(StateSpaceDecoder(self.spec, weights, options.kernels), builder.size_bytes, source.notes)


def opener(
    read: Callable[[HFConfig], StateSpaceSpec],
) -> Callable[[ModuleArchitecture, Path, HFConfig], StateSpaceModel]:
    """``ModuleArchitecture.open`` of a family whose configuration ``read`` reads."""

    def open_model(architecture: ModuleArchitecture, model_dir: Path, config: HFConfig) -> StateSpaceModel:
        return StateSpaceModel(architecture, model_dir, read(config))

    return open_model


class LayerWeights(NamedTuple):
    """One layer: a norm and a mixer."""

    norm: NormWeights
    mixer: StateMixer


class StateSpaceWeights(NamedTuple):
    """All weights; ``head`` is [V, E]."""

    embedding_VE: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: NormWeights
    head: Linear


def load_weights(builder: WeightBuilder, spec: StateSpaceSpec) -> StateSpaceWeights:
    """Take every weight of the model and pack the linears.

    Raises:
        StartupError: tensors are missing or of the wrong shape.
    """
    embedding_VE = builder.take("backbone.embeddings.weight", (spec.vocab_size, spec.hidden_size))
    layers = tuple(
        LayerWeights(
            builder.norm(f"backbone.layers.{layer}.norm", spec.hidden_size, Norm.RMS),
            load_mixer(builder, spec, layer),
        )
        for layer in range(spec.num_layers)
    )
    final_norm = builder.norm("backbone.norm_f", spec.hidden_size, Norm.RMS)
    return StateSpaceWeights(embedding_VE, layers, final_norm, _load_head(builder, spec, embedding_VE))


def _load_head(builder: WeightBuilder, spec: StateSpaceSpec, embedding_VE: Tensor) -> Linear:
    weight_VE = builder.head("lm_head.weight", embedding_VE, tied=spec.tied_head)
    weight = builder.kernels.pack_linear(weight_VE)
    if weight_VE is embedding_VE and weight is not embedding_VE:
        builder.size_bytes += embedding_VE.nbytes
    return Linear(weight)


class StateSpaceDecoder:
    """See ``LoadedModel``.

    Args:
        spec: the model.
        weights: loaded and packed by the same ``kernels``.
        kernels: every operation.
    """

    def __init__(self, spec: StateSpaceSpec, weights: StateSpaceWeights, kernels: Kernels) -> None:
        self._spec = spec
        self._weights = weights
        self._kernels = kernels
        self.hidden_E = weights.embedding_VE.new_zeros(spec.hidden_size)
        self._widens = spec.float_residual and self.hidden_E.dtype is not torch.float32
        self._next_norms = [*(layer.norm for layer in weights.layers[1:]), weights.final_norm]

    def hidden(self, step: Step) -> Tensor:
        """Run all layers: the step's tokens -> normed hidden states [T, E]; writes states."""
        weights, kernels = self._weights, self._kernels
        residual_TE = kernels.embedding(step.ids_T, weights.embedding_VE)
        x_TE = kernels.rms_norm(residual_TE, weights.layers[0].norm.weight, self._spec.norm_eps, 0.0)
        if self._widens:
            residual_TE = residual_TE.float()
        for index, (layer, norm) in enumerate(zip(weights.layers, self._next_norms, strict=True)):
            states = SlotStates(*step.states[2 * index : 2 * index + 2])
            x_TE, residual_TE = self._add(layer.mixer(x_TE, states, step.rows), residual_TE, norm)
        return x_TE

    def logits(self, hidden_BE: Tensor) -> Tensor:
        """The head: hidden states of the rows that sample -> [B, V]."""
        head = self._weights.head
        return self._kernels.linear(hidden_BE, head.weight, head.bias)

    def _add(self, x_TE: Tensor, residual_TE: Tensor, norm: NormWeights) -> tuple[Tensor, Tensor]:
        """The residual stream with ``x`` added to it: normed, and itself."""
        eps = self._spec.norm_eps
        if not self._widens:
            return self._kernels.add_rms_norm(x_TE, residual_TE, norm.weight, eps, 0.0)
        residual_TE = residual_TE + x_TE
        return self._kernels.rms_norm(residual_TE.to(x_TE.dtype), norm.weight, eps, 0.0), residual_TE
