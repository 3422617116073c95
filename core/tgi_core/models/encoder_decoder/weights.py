"""The weights of an encoder-decoder: what they are, and how they are taken out of a checkpoint."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.models.decoder_weights import MLPWeights
from tgi_core.models.encoder_decoder.positions import backward_biases, sine_table, two_way_biases
from tgi_core.models.encoder_decoder.spec import (
    AttentionNames,
    EncoderDecoderNames,
    EncoderDecoderSpec,
    Positions,
    StackNames,
    StackSpec,
)
from tgi_core.models.linear import Linear, NormWeights
from tgi_core.models.weight_builder import WeightBuilder


class SelfWeights(NamedTuple):
    """Attention among the tokens of one side: ``qkv`` is [3 * H * D, E], ``o`` [E, H * D]; ``bias`` [H, X] is that on
    scores by distance."""

    norm: NormWeights
    qkv: Linear
    o: Linear
    bias_HX: Tensor | None


class CrossWeights(NamedTuple):
    """Attention of the decoder to the encoder's tokens: ``q`` is [H * D, E], ``kv`` [2 * H * D, E]."""

    norm: NormWeights
    q: Linear
    kv: Linear
    o: Linear


class LayerWeights(NamedTuple):
    """One layer; ``cross`` is None in the encoder."""

    attention: SelfWeights
    cross: CrossWeights | None
    mlp_norm: NormWeights
    mlp: MLPWeights


class StackWeights(NamedTuple):
    """One side. ``positions`` [X, E] is its table of positions; ``final_norm`` is there with norms in front."""

    embedding_VE: Tensor
    positions_XE: Tensor | None
    embedding_norm: NormWeights | None
    layers: tuple[LayerWeights, ...]
    final_norm: NormWeights | None


class EncoderDecoderWeights(NamedTuple):
    """All weights and the memory they take; ``head`` is [V, E]."""

    encoder: StackWeights
    decoder: StackWeights
    head: Linear
    size_bytes: int


def load_weights(spec: EncoderDecoderSpec, names: EncoderDecoderNames, builder: WeightBuilder) -> EncoderDecoderWeights:
    """Take every weight of the model and pack the linears.

    Raises:
        StartupError: tensors are missing, left over or of the wrong shape.
    """
    embedding_VE = _load_embedding(spec, names, builder)
    stacks = [
        _Stack(spec, stack, stack_names, builder, embedding_VE).load()
        for stack, stack_names in ((spec.encoder, names.encoder), (spec.decoder, names.decoder))
    ]
    head = _load_head(spec, names, builder, embedding_VE)
    builder.source.finish()
    return EncoderDecoderWeights(stacks[0], stacks[1], head, builder.size_bytes)


def _load_embedding(spec: EncoderDecoderSpec, names: EncoderDecoderNames, builder: WeightBuilder) -> Tensor:
    """The table that both sides share, under the first of its names that is there; the other names are copies."""
    stored = [f"{name}.weight" for name in names.embeddings]
    chosen = next((name for name in stored if builder.source.has(name)), stored[0])
    table_VE = builder.take(chosen, (spec.vocab_size, spec.hidden_size))
    for name in stored:
        builder.source.drop(name)
    return table_VE


def _load_head(
    spec: EncoderDecoderSpec, names: EncoderDecoderNames, builder: WeightBuilder, embedding_VE: Tensor
) -> Linear:
    """The head, or the embedding table in its place; whether the two are one only the checkpoint says for sure."""
    name, shape = f"{names.head}.weight", (spec.vocab_size, spec.hidden_size)
    weight_VE = embedding_VE
    if builder.source.has(name):
        stored_VE = builder.source.take(name, shape)
        if not torch.equal(stored_VE, embedding_VE):
            weight_VE = stored_VE
    packed = builder.kernels.pack_linear(weight_VE)
    if packed is not embedding_VE:
        builder.size_bytes += weight_VE.nbytes
    bias_V = None
    if names.logits_bias and builder.source.has(names.logits_bias):
        bias_V = builder.take(names.logits_bias, (1, spec.vocab_size)).flatten()
    if spec.suppressed:
        bias_V = embedding_VE.new_zeros(spec.vocab_size) if bias_V is None else bias_V.clone()
        bias_V[list(spec.suppressed)] = float("-inf")
    return Linear(packed, bias_V)


class _Stack:
    """Builds one side."""

    def __init__(
        self,
        spec: EncoderDecoderSpec,
        stack: StackSpec,
        names: StackNames,
        builder: WeightBuilder,
        embedding_VE: Tensor,
    ) -> None:
        self._spec = spec
        self._stack = stack
        self._names = names
        self._builder = builder
        self._embedding_VE = embedding_VE
        self._width = stack.num_heads * stack.head_dim
        self._shared_bias_HX: Tensor | None = None

    def load(self) -> StackWeights:
        spec, names = self._spec, self._names
        return StackWeights(
            embedding_VE=self._embedding_VE,
            positions_XE=self._positions(),
            embedding_norm=self._norm(names.embedding_norm) if spec.embedding_norm else None,
            layers=tuple(self._layer(index) for index in range(self._stack.num_layers)),
            final_norm=self._norm(names.final_norm) if spec.pre_norm else None,
        )

    def _positions(self) -> Tensor | None:
        spec, name = self._spec, f"{self._names.positions}.weight"
        rows = spec.max_positions + spec.position_offset
        match spec.positions:
            case Positions.DISTANCE:
                return None
            case Positions.LEARNED:
                return self._builder.take(name, (rows, spec.hidden_size))
            case kind:
                # Some checkpoints hold what can be computed.
                self._builder.source.drop(name)
                table_XE = sine_table(rows, spec.hidden_size, kind).to(self._embedding_VE)
                self._builder.size_bytes += table_XE.nbytes
                return table_XE

    def _layer(self, index: int) -> LayerWeights:
        spec, names, hidden = self._spec, self._names, self._spec.hidden_size
        inner = self._stack.intermediate_size
        up = tuple(name.format(index) for name in names.up)
        cross = names.cross_attention
        return LayerWeights(
            attention=self._self_attention(names.self_attention, index),
            cross=None if cross is None else self._cross_attention(cross, index),
            mlp_norm=self._norm(names.mlp_norm, index),
            mlp=MLPWeights(
                up=self._builder.linear(up, (inner,) * len(up), hidden, bias=spec.bias),
                down=self._builder.linear((names.down.format(index),), (hidden,), inner, bias=spec.bias),
            ),
        )

    def _self_attention(self, names: AttentionNames, index: int) -> SelfWeights:
        return SelfWeights(
            norm=self._norm(names.norm, index),
            qkv=self._from_hidden(names.prefix, (names.q, names.k, names.v), index),
            o=self._to_hidden(names, index),
            bias_HX=self._bias(index),
        )

    def _cross_attention(self, names: AttentionNames, index: int) -> CrossWeights:
        return CrossWeights(
            norm=self._norm(names.norm, index),
            q=self._from_hidden(names.prefix, (names.q,), index),
            kv=self._from_hidden(names.prefix, (names.k, names.v), index),
            o=self._to_hidden(names, index),
        )

    def _from_hidden(self, prefix: str, parts: tuple[str, ...], index: int) -> Linear:
        stored = tuple(f"{prefix.format(index)}.{part}" for part in parts)
        return self._builder.linear(stored, (self._width,) * len(parts), self._spec.hidden_size, bias=self._spec.bias)

    def _to_hidden(self, names: AttentionNames, index: int) -> Linear:
        stored = (f"{names.prefix.format(index)}.{names.o}",)
        return self._builder.linear(stored, (self._spec.hidden_size,), self._width, bias=self._spec.bias)

    def _bias(self, index: int) -> Tensor | None:
        buckets = self._spec.distances
        if buckets is None:
            return None
        if index == 0 or buckets.every_layer:
            name = f"{self._names.distance_bias.format(index)}.weight"
            bias_BH = self._builder.take(name, (buckets.num_buckets, self._stack.num_heads))
            expand = two_way_biases if self._names.cross_attention is None else backward_biases
            self._shared_bias_HX = expand(bias_BH, buckets)
        return self._shared_bias_HX

    def _norm(self, name: str, index: int = 0) -> NormWeights:
        return self._builder.norm(name.format(index), self._spec.hidden_size, self._spec.norm)
