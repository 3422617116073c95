"""A decoder-only model as data: ``Decoder`` reads it, an architecture fills it from ``config.json``."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from tgi_core.contract.experts import RoutingSpec

if TYPE_CHECKING:
    from tgi_core.models.hf_config import HFConfig


class LinearScaling(msgspec.Struct, frozen=True):
    """Positions divided by ``factor``. Source: Chen et al. 2023."""

    factor: float


class Llama3Scaling(msgspec.Struct, frozen=True):
    """Low frequencies divided by ``factor``, high ones kept, those between blended. Source: the Llama 3.1 release."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


class YarnScaling(msgspec.Struct, frozen=True):
    """NTK-by-parts interpolation; cos and sin are multiplied by ``attention_factor``. Source: Peng et al. 2023."""

    factor: float
    attention_factor: float
    beta_fast: float
    beta_slow: float
    original_max_positions: int
    truncate: bool


class LongRopeScaling(msgspec.Struct, frozen=True):
    """A divisor for each pair of features, of one list within the original context and of another beyond it.

    cos and sin are multiplied by the list's ``attention_factor``. Source: Ding et al. 2024.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    short_attention_factor: float
    long_attention_factor: float
    original_max_positions: int


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling


class RopeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A rotary position embedding: base, how many features of a head it rotates, and how it is stretched."""

    theta: float
    rotary_dim: int
    scaling: RopeScaling | None = None


class LayerSpec(msgspec.Struct, frozen=True):
    """What differs between layers.

    Attributes:
        window: the attention window in tokens; None sees all.
        rope: index into ``ArchitectureSpec.ropes``; None rotates nothing.
        has_experts: its MLP is ``ArchitectureSpec.experts``, and not a dense one.
    """

    window: int | None
    rope: int | None
    has_experts: bool = False


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
    WIDTH = "RMS norm over all heads together"
    HEAD_LAYER = "layer norm over each head, a weight for each head"


class ExpertsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts in place of an MLP; its experts are gated and have the MLP's activation.

    Attributes:
        num_experts, intermediate_size: X, and F of one expert.
        routing: how experts are chosen.
        router_bias, expert_bias: which linears have one.
        selection_bias: a bias joins the scores for the choice alone.
        shared_size: F of an MLP that every token goes through beside its experts; None for none.
        shared_gate: the share of that MLP is weighed by a sigmoid of its own.
    """

    num_experts: int
    intermediate_size: int
    routing: RoutingSpec
    router_bias: bool = False
    expert_bias: bool = False
    selection_bias: bool = False
    shared_size: int | None = None
    shared_gate: bool = False


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
        experts: the mixture of experts of the layers that have one.
        gated: the MLP is ``down(act(gate(x)) * up(x))``; otherwise ``down(act(up(x)))``.
        qkv_bias, o_bias, mlp_bias, head_bias: which linears have one.
        tied_head: the head is the embedding table.
        unit_head_rows: the head's rows are scaled to length 1.
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
    experts: ExpertsSpec | None = None
    gated: bool = True
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    tied_head: bool = False
    unit_head_rows: bool = False

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The distinct windows, in order of the first layer that has each: one KV group each."""
        return tuple(dict.fromkeys(layer.window for layer in self.layers))


class ExpertLayout(Enum):
    """How a checkpoint stores the experts of a layer."""

    EACH = "every expert's matrices by themselves, as those of an MLP"
    STACKED = "[X, 2F, E] and [X, E, F]"
    FLAT = "[X * F, E], the last of the three transposed"
    INTERLEAVED = "[X, E, 2F], gate and up by turns, and [X, F, E], named without `.weight`"


class ExpertNames(msgspec.Struct, frozen=True, kw_only=True):
    """Where a checkpoint keeps a mixture of experts; with ``ExpertLayout.EACH`` the second ``{}`` is the expert's."""

    router: str = "model.layers.{}.mlp.gate"
    selection_bias: str = "model.layers.{}.mlp.gate.e_score_correction_bias"
    gate_up: tuple[str, ...] = (
        "model.layers.{}.mlp.experts.{}.gate_proj",
        "model.layers.{}.mlp.experts.{}.up_proj",
    )
    down: str = "model.layers.{}.mlp.experts.{}.down_proj"
    shared_gate_up: tuple[str, ...] = (
        "model.layers.{}.mlp.shared_expert.gate_proj",
        "model.layers.{}.mlp.shared_expert.up_proj",
    )
    shared_down: str = "model.layers.{}.mlp.shared_expert.down_proj"
    shared_gate: str = "model.layers.{}.mlp.shared_expert_gate"
    layout: ExpertLayout = ExpertLayout.EACH


class WeightNames(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how a checkpoint keeps each weight; names are without ``.weight`` and ``.bias``.

    The first ``{}`` of a name stands for the layer's number, a second one for the head's. A merged weight names its
    parts in order; a checkpoint that stores it merged names one.

    Attributes:
        qkv_by_group: a merged ``qkv`` holds, for each key head, its query heads, then key, then value.
        adjacent_pairs: rotation pairs features 2i and 2i + 1; the loader reorders them into halves.
        transposed: linears of layers are stored [inputs, outputs].
    """

    embedding: str = "model.embed_tokens"
    embedding_norm: str = ""
    positions: str = ""
    project_in: str = ""
    project_out: str = ""
    final_norm: str = "model.norm"
    head: str = "lm_head"
    attention_norm: str = "model.layers.{}.input_layernorm"
    qkv: tuple[str, ...] = (
        "model.layers.{}.self_attn.q_proj",
        "model.layers.{}.self_attn.k_proj",
        "model.layers.{}.self_attn.v_proj",
    )
    q_norm: str = "model.layers.{}.self_attn.q_norm"
    k_norm: str = "model.layers.{}.self_attn.k_norm"
    o: str = "model.layers.{}.self_attn.o_proj"
    attention_out_norm: str = ""
    mlp_norm: str = "model.layers.{}.post_attention_layernorm"
    gate_up: tuple[str, ...] = ("model.layers.{}.mlp.gate_proj", "model.layers.{}.mlp.up_proj")
    down: str = "model.layers.{}.mlp.down_proj"
    mlp_out_norm: str = ""
    sinks: str = "model.layers.{}.self_attn.sinks"
    experts: ExpertNames = ExpertNames()
    qkv_by_group: bool = False
    adjacent_pairs: bool = False
    transposed: bool = False


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A family of models.

    Attributes:
        model_type: as ``config.json`` names it.
        build: reads the configuration; raises StartupError for a feature it does not know.
        names: where the checkpoint keeps the weights.
        renames: checkpoint prefixes and what they stand for, tried in order; the first that fits is replaced. ``{}``
            stands for a number, the same on both sides.
        ignored: prefixes of tensors that the text model does not need, with ``{}`` for any number.
    """

    model_type: str
    build: Callable[[HFConfig], ArchitectureSpec]
    names: WeightNames = WeightNames()
    renames: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
