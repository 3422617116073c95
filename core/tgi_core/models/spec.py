"""A decoder-only model as data: ``Decoder`` reads it, an architecture fills it from ``config.json``."""

from __future__ import annotations

from enum import Enum

import msgspec

from tgi_core.contract.experts import RoutingSpec
from tgi_core.contract.states import DeltaRuleSpec
from tgi_core.models.ropes import RopeSpec


class LayerSpec(msgspec.Struct, frozen=True):
    """What differs between layers.

    Attributes:
        window: the attention window in tokens; None sees all.
        rope: index into ``ArchitectureSpec.ropes``; None rotates nothing.
        has_experts: its MLP is ``ArchitectureSpec.experts``, and not a dense one.
        has_delta_net: it mixes tokens by ``ArchitectureSpec.delta_net``, and attends to none.
    """

    window: int | None
    rope: int | None
    has_experts: bool = False
    has_delta_net: bool = False


class Norm(Enum):
    """The kind of a model's norms."""

    RMS = "rms"
    LAYER = "layer"
    LAYER_BIAS = "layer with bias"
    LAYER_PLAIN = "layer without weight"


class Block(Enum):
    """Where a layer's norms stand. ``x`` is the residual stream, f the attention, g the MLP, n a norm.

    Sources: Xiong et al. 2020 for the first and the fourth, Wang and Komatsuzaki 2021 for the parallel ones.
    """

    PRE = "x += f(n(x)); x += g(n(x))"
    SANDWICH = "x += n(f(n(x))); x += n(g(n(x)))"
    OUT = "x += n(f(x)); x += n(g(x))"
    POST = "x = n(x + f(x)); x = n(x + g(x))"
    PARALLEL = "x += f(n(x)) + g(n(x)), one norm for both"
    PARALLEL_TWO_NORMS = "x += f(n(x)) + g(m(x))"

    @property
    def is_parallel(self) -> bool:
        """Whether attention and MLP read the same stream."""
        return self in (Block.PARALLEL, Block.PARALLEL_TWO_NORMS)


class QKNorm(Enum):
    """How queries and keys are normed before they are rotated."""

    HEAD = "RMS norm over each head, one weight for all heads"
    HEAD_PLAIN = "RMS norm over each head without a weight, in layers that rotate"
    WIDTH = "RMS norm over all heads together"
    HEAD_LAYER = "layer norm over each head, a weight for each head"


class LatentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Attention over one compressed row a token, of which the keys and values of all heads are made.

    The row is what the cache holds: the model has one key head of ``rank + rotated_dim`` features. Its rotary embedding
    turns the last ``rotated_dim`` of them. Source: DeepSeek-AI 2024.

    Attributes:
        rank: compressed features, which keys and values are made of.
        unrotated_dim, rotated_dim: features of a head's query that meet those, and the rotated ones of the row.
        value_dim: features of a head's value.
        query_rank: features that queries are made of, compressed and normed; None where they are made of the hidden
            states.
        norm_eps: of the norms of compressed features.
        adjacent_pairs: as in ``WeightNames``, of the rotated features.
    """

    rank: int
    unrotated_dim: int
    rotated_dim: int
    value_dim: int
    query_rank: int | None
    norm_eps: float
    adjacent_pairs: bool


class QueryTemperature(msgspec.Struct, frozen=True, kw_only=True):
    """Queries at position p are multiplied by ``1 + weight * log(1 + floor((p + 1) / interval))``.

    So attention over long contexts stays as sharp as over short ones. Source: Nakanishi 2025.
    """

    weight: float
    interval: float


class DeltaNetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Gated delta nets: queries, keys and values go through a causal convolution of ``taps`` taps, then the rule."""

    rule: DeltaRuleSpec
    taps: int

    @property
    def channels(self) -> int:
        """Features of queries, keys and values together."""
        return 2 * self.rule.key_width + self.rule.value_width


class ExpertsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts in place of an MLP; its experts are gated and have the MLP's activation.

    Attributes:
        num_experts, intermediate_size: X, and F of one expert.
        routing: how experts are chosen.
        router_bias, expert_bias: which linears have one.
        selection_bias: a bias joins the scores for the choice alone.
        shared_size: F of an MLP that every token goes through beside its experts; None for none.
        shared_gate: the share of that MLP is weighed by a sigmoid of its own.
        weighs_inputs: an expert's weight multiplies what goes into it; each token has one expert.
    """

    num_experts: int
    intermediate_size: int
    routing: RoutingSpec
    router_bias: bool = False
    expert_bias: bool = False
    selection_bias: bool = False
    shared_size: int | None = None
    shared_gate: bool = False
    weighs_inputs: bool = False


class ArchitectureSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One model.

    Attributes:
        vocab_size, hidden_size, intermediate_size: V, E and F.
        num_heads, num_kv_heads, head_dim: H, K and D.
        max_positions: longest sequence the model was made for, in tokens.
        layers: one entry a layer.
        ropes: the kinds of rotary embedding that layers refer to.
        norm_eps, norm_offset: of every norm; the offset is 1 where checkpoints of RMS norms store ``weight - 1``.
        activation: of the MLP, as ``Kernels.activation_mul`` and ``Kernels.activation`` name it.
        attention_scale: multiplies attention scores.
        attention_soft_cap, final_soft_cap: ``cap * tanh(x / cap)`` on scores and logits; None leaves them.
        embedding_scale, residual_scale, logit_scale: multiply the embeddings, what a layer adds to the residual
            stream, and the logits.
        norm: the kind of every norm.
        block: where a layer's norms stand.
        qk_norm: how queries and keys are normed; None leaves them.
        qkv_clip: queries, keys and values are cut to plus and minus it; None leaves them.
        alibi_slopes: a linear bias on distance for each head; None for none.
        learned_positions: rows of the table of position embeddings; None for no table.
        position_offset: the row of position 0 in it.
        embedding_norm: the embeddings are normed.
        embedding_size: features of the embedding table and the head where projections stand between them and the
            layers; None where they are E.
        attention_sinks: every head has a learned score that attends to nothing.
        chunked: windows are chunks: a layer with one sees no further back than a multiple of it.
        query_temperature: of layers that rotate nothing; None leaves them.
        latent: attention is latent; None for attention over keys and values.
        output_gate: what attention returns is weighed by a sigmoid of its own: ``WeightNames.qkv`` has for each head
            the rows of its query, then those of its gate.
        delta_net: the delta nets of the layers that have one.
        experts: the mixture of experts of the layers that have one.
        gated: the MLP is ``down(act(gate(x)) * up(x))``; otherwise ``down(act(up(x)))``.
        qkv_bias, o_bias, mlp_bias, head_bias: which linears have one.
        tied_head: the head is the embedding table.
        unit_head_rows: the head's rows are scaled to length 1.
        ignored: prefixes of tensors that the checkpoint has beside the model's, as in ``ModelFamily``.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    layers: tuple[LayerSpec, ...]
    ropes: tuple[RopeSpec, ...]
    norm_eps: float
    activation: str
    attention_scale: float
    norm_offset: float = 0.0
    attention_soft_cap: float | None = None
    final_soft_cap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    norm: Norm = Norm.RMS
    block: Block = Block.PRE
    qk_norm: QKNorm | None = None
    qkv_clip: float | None = None
    alibi_slopes: tuple[float, ...] | None = None
    learned_positions: int | None = None
    position_offset: int = 0
    embedding_norm: bool = False
    embedding_size: int | None = None
    attention_sinks: bool = False
    chunked: bool = False
    query_temperature: QueryTemperature | None = None
    latent: LatentSpec | None = None
    output_gate: bool = False
    delta_net: DeltaNetSpec | None = None
    experts: ExpertsSpec | None = None
    gated: bool = True
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    tied_head: bool = False
    unit_head_rows: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The distinct windows, in order of the first layer that has each: one KV group each."""
        return tuple(dict.fromkeys(layer.window for layer in self.layers if not layer.has_delta_net))
