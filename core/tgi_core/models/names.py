"""Where and how checkpoints keep the weights of a model."""

from __future__ import annotations

from enum import Enum

import msgspec


class ExpertLayout(Enum):
    """How a checkpoint stores the experts of a layer."""

    EACH = "every expert's matrices by themselves, as those of an MLP"
    STACKED = "[X, 2F, E] and [X, E, F]"
    FLAT = "[X * F, E], the last of the three transposed"
    TRANSPOSED = "[X, E, 2F] and [X, F, E], named without `.weight`"
    INTERLEAVED = "[X, E, 2F], gate and up by turns, and [X, F, E], named without `.weight`"


class ExpertNames(msgspec.Struct, frozen=True, kw_only=True):
    """Where a checkpoint keeps a mixture of experts; with ``ExpertLayout.EACH`` the second ``{}`` is the expert's.

    Attributes:
        stacked: where some checkpoints keep gate and up [X, 2F, E] and down [X, E, F] instead: whole names.
    """

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
    stacked: tuple[str, str] | None = None


class LatentNames(msgspec.Struct, frozen=True, kw_only=True):
    """Where a checkpoint keeps latent attention beside ``WeightNames.o``: ``q``, or the others of queries."""

    q: str = "model.layers.{}.self_attn.q_proj"
    q_down: str = "model.layers.{}.self_attn.q_a_proj"
    q_norm: str = "model.layers.{}.self_attn.q_a_layernorm"
    q_up: str = "model.layers.{}.self_attn.q_b_proj"
    kv_down: str = "model.layers.{}.self_attn.kv_a_proj_with_mqa"
    kv_norm: str = "model.layers.{}.self_attn.kv_a_layernorm"
    kv_up: str = "model.layers.{}.self_attn.kv_b_proj"


class DeltaNetNames(msgspec.Struct, frozen=True, kw_only=True):
    """Where a checkpoint keeps delta nets; ``a_log`` and ``dt_bias`` are whole names.

    Attributes:
        inputs: queries, keys and values; the gates of their output; b; a.
        by_key_head: ``inputs`` are two: for each key head its query, its key, and its heads' values and gates; for each
            key head its heads' b and a.
    """

    inputs: tuple[str, ...] = (
        "model.layers.{}.linear_attn.in_proj_qkv",
        "model.layers.{}.linear_attn.in_proj_z",
        "model.layers.{}.linear_attn.in_proj_b",
        "model.layers.{}.linear_attn.in_proj_a",
    )
    conv: str = "model.layers.{}.linear_attn.conv1d"
    a_log: str = "model.layers.{}.linear_attn.A_log"
    dt_bias: str = "model.layers.{}.linear_attn.dt_bias"
    norm: str = "model.layers.{}.linear_attn.norm"
    o: str = "model.layers.{}.linear_attn.out_proj"
    by_key_head: bool = False


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
    latent: LatentNames = LatentNames()
    delta_net: DeltaNetNames = DeltaNetNames()
    experts: ExpertNames = ExpertNames()
    qkv_by_group: bool = False
    adjacent_pairs: bool = False
    transposed: bool = False
