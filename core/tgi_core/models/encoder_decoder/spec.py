"""An encoder-decoder as data: an architecture fills it from ``config.json``."""

from __future__ import annotations

from enum import Enum

import msgspec

from tgi_core.models.spec import Norm


class Positions(Enum):
    """What tells positions apart."""

    DISTANCE = "a learned bias on scores by distance"
    LEARNED = "a table of embeddings for each side"
    SINES = "sines and cosines of wavelengths in geometric progression"
    SINES_TO_END = "the same, with the longest wavelength reached by the last pair of features"


class DistanceBuckets(msgspec.Struct, frozen=True, kw_only=True):
    """Distances that share a learned bias: near ones have a bucket each, further ones logarithmically wider ones.

    Source: Raffel et al. 2020.

    Attributes:
        num_buckets: how many there are; where a query sees both ways, half of them for each.
        max_distance: from here on all distances share the last one.
        every_layer: every layer has a bias of its own; otherwise all have the first one's.
    """

    num_buckets: int
    max_distance: int
    every_layer: bool


class StackSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of one side."""

    num_layers: int
    num_heads: int
    head_dim: int
    intermediate_size: int


class EncoderDecoderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One model.

    Attributes:
        vocab_size, hidden_size: V and E, of both sides.
        encoder, decoder: their layers.
        max_positions: longest input of the encoder, and longest sequence of the decoder, in tokens.
        activation: of the MLPs, as ``Kernels.activation_mul`` and ``Kernels.activation`` name it.
        gated: the MLP is ``down(act(gate(x)) * up(x))``; otherwise ``down(act(up(x)))``.
        norm, norm_eps: of every norm.
        pre_norm: norms stand before a layer's parts, and one behind the last layer; otherwise behind each sum.
        scaled_scores: attention scores are divided by the root of the head's size.
        bias: linears of layers have one.
        positions: how positions are told apart.
        position_offset: the row of position 0 in a table of positions.
        distances: the buckets of ``Positions.DISTANCE``.
        embedding_norm: the embeddings are normed.
        decoder_norms_first: the decoder's are normed before positions are added to them, not behind.
        embedding_scale: multiplies the embeddings.
        logit_scale: multiplies what the head reads.
        suppressed: tokens that are never chosen.
    """

    vocab_size: int
    hidden_size: int
    encoder: StackSpec
    decoder: StackSpec
    max_positions: int
    activation: str
    gated: bool = False
    norm: Norm = Norm.LAYER_BIAS
    norm_eps: float = 1e-5
    pre_norm: bool = True
    scaled_scores: bool = True
    bias: bool = True
    positions: Positions = Positions.LEARNED
    position_offset: int = 0
    distances: DistanceBuckets | None = None
    embedding_norm: bool = False
    decoder_norms_first: bool = False
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    suppressed: tuple[int, ...] = ()

    def attention_scale(self, stack: StackSpec) -> float:
        """What multiplies the attention scores of a side."""
        return stack.head_dim**-0.5 if self.scaled_scores else 1.0


class AttentionNames(msgspec.Struct, frozen=True):
    """Where a checkpoint keeps an attention: ``q``, ``k``, ``v`` and ``o`` behind ``prefix``, which has the layer's
    ``{}``; ``norm`` is the norm that belongs to it."""

    prefix: str
    norm: str
    q: str
    k: str
    v: str
    o: str


class StackNames(msgspec.Struct, frozen=True, kw_only=True):
    """Where a checkpoint keeps one side; ``{}`` is the layer's number, and names are without ``.weight``."""

    self_attention: AttentionNames
    cross_attention: AttentionNames | None
    up: tuple[str, ...]
    down: str
    mlp_norm: str
    final_norm: str
    distance_bias: str = ""
    positions: str = ""
    embedding_norm: str = ""


class EncoderDecoderNames(msgspec.Struct, frozen=True, kw_only=True):
    """Where a checkpoint keeps a model.

    Attributes:
        embeddings: names under which the one embedding table may be found.
        head: of the head, where it is not the embedding table.
        logits_bias: of a bias on the logits; "" for none.
        encoder, decoder: the sides.
    """

    embeddings: tuple[str, ...]
    head: str
    encoder: StackNames
    decoder: StackNames
    logits_bias: str = ""
