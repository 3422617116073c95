"""The weights of a decoder on its device, as the loader hands them over."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from tgi_core.contract.experts import ExpertWeights
from tgi_core.models.linear import Linear, NormWeights
from tgi_core.models.mixers.attention import AttentionWeights
from tgi_core.models.mixers.delta_net import DeltaNetWeights
from tgi_core.models.mixers.latent import LatentWeights

MixerWeights = AttentionWeights | LatentWeights | DeltaNetWeights
"""What a layer mixes tokens with."""


class MLPWeights(NamedTuple):
    """A dense MLP: ``up`` is [F, E], or gate and up merged as [2F, E] where the MLP is gated; ``down`` is [E, F]."""

    up: Linear
    down: Linear


class ExpertMLPWeights(NamedTuple):
    """A mixture of experts: ``router`` is [X, E]; ``shared_gate`` is [1, E]."""

    router: Linear
    selection_bias_X: Tensor | None
    experts: ExpertWeights
    shared: MLPWeights | None
    shared_gate: Linear | None


class LayerWeights(NamedTuple):
    """The weights of one layer.

    Norms are None where the spec's ``Block`` has none. With ``Block.POST`` ``mlp_norm`` stands after attention's sum
    and ``mlp_out_norm`` after the MLP's.
    """

    attention_norm: NormWeights | None
    mixer: MixerWeights
    attention_out_norm: NormWeights | None
    mlp_norm: NormWeights | None
    mlp: MLPWeights | ExpertMLPWeights
    mlp_out_norm: NormWeights | None


class DecoderWeights(NamedTuple):
    """All weights and the memory they take; ``head`` is [V, E].

    ``positions_PE`` is the table of position embeddings; ``project_in`` and ``project_out`` stand between a narrower
    embedding table and the layers.
    """

    embedding_VE: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: NormWeights | None
    head: Linear
    size_bytes: int
    embedding_norm: NormWeights | None = None
    positions_PE: Tensor | None = None
    project_in: Linear | None = None
    project_out: Linear | None = None
