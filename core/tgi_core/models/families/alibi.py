"""BLOOM, MPT and Falcon, which know positions by a bias on distance or, in most of Falcon's, by rotation."""

from __future__ import annotations

from msgspec.structs import replace

from tgi_core.models.families.base import alibi_slopes, base, mpt_alibi_slopes, optional
from tgi_core.models.family import Architecture
from tgi_core.models.hf_config import HFConfig
from tgi_core.models.names import WeightNames
from tgi_core.models.spec import ArchitectureSpec, Block, Norm


def bloom(config: HFConfig) -> ArchitectureSpec:
    config.refuse_if_set("apply_residual_connection_post_layernorm")
    names = {
        "hidden_size": "n_embed",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "seq_length",
        "rms_norm_eps": "layer_norm_epsilon",
    }
    config = config.with_names(**names)
    spec = base(config, theta=None, gated=False, activation="gelu_new", eps=1e-5, tied=True, max_positions=2048)
    return replace(
        spec,
        norm=Norm.LAYER_BIAS,
        alibi_slopes=alibi_slopes(spec.num_heads),
        embedding_norm=True,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
    )


def mpt(config: HFConfig) -> ArchitectureSpec:
    names = {
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "max_position_embeddings": "max_seq_len",
        "rms_norm_eps": "layer_norm_epsilon",
    }
    if not config.get("no_bias", bool, True):
        raise config.unsupported("no_bias", "biases are not supported")
    config.refuse_if_set("logit_scale")
    attention = config.section("attn_config", {})
    attention.refuse_if_set("prefix_lm", "qk_ln")
    for key, known in (("attn_type", "multihead_attention"), ("alibi", True)):
        if attention.has(key) and attention.get(key, type(known)) != known:
            raise attention.unsupported(key, f"only {known} is supported")
    named = config.with_names(**names)
    spec = base(named, theta=None, gated=False, activation="gelu", eps=1e-5, tied=True)
    ratio = config.size("expansion_ratio", 4)
    return replace(
        spec,
        intermediate_size=ratio * spec.hidden_size,
        attention_scale=attention.positive("softmax_scale", spec.attention_scale),
        norm=Norm.LAYER,
        qkv_clip=optional(attention, "clip_qkv"),
        alibi_slopes=mpt_alibi_slopes(spec.num_heads, attention.positive("alibi_bias_max", 8.0)),
    )


def falcon(config: HFConfig) -> ArchitectureSpec:
    names = {
        "hidden_size": "n_embed",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "ffn_hidden_size",
        "hidden_act": "activation",
        "rms_norm_eps": "layer_norm_epsilon",
    }
    named = config.with_names(**names)
    is_new, has_alibi = config.get("new_decoder_architecture", bool, False), config.get("alibi", bool, False)
    num_heads = named.size("num_attention_heads")
    if is_new:
        num_kv_heads = config.size("num_kv_heads", config.size("n_head_kv", num_heads))
    else:
        num_kv_heads = 1 if config.get("multi_query", bool, True) else num_heads
    spec = base(
        named,
        num_kv_heads=num_kv_heads,
        theta=None if has_alibi else 10_000.0,
        gated=False,
        activation="gelu",
        eps=1e-5,
        tied=True,
        max_positions=2048,
    )
    bias = config.get("bias", bool, False)
    # Falcon scales the scores after the bias is added to them.
    slopes = tuple(slope * spec.attention_scale for slope in alibi_slopes(num_heads))
    return replace(
        spec,
        block=_falcon_block(config, is_new=is_new),
        norm=Norm.LAYER_BIAS,
        alibi_slopes=slopes if has_alibi else None,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
    )


def _falcon_block(config: HFConfig, *, is_new: bool) -> Block:
    if not config.get("parallel_attn", bool, True):
        if is_new:
            raise config.refuse("parallel_attn", "the new decoder architecture is parallel")
        return Block.PRE
    key = "num_ln_in_parallel_attn"
    num_norms = config.size(key, 2 if is_new else 1, most=2)
    if num_norms == 2 and not is_new:
        raise config.refuse(key, "only the new decoder architecture has two norms")
    return Block.PARALLEL_TWO_NORMS if num_norms == 2 else Block.PARALLEL


_BLOOM_NAMES = WeightNames(
    embedding="transformer.word_embeddings",
    embedding_norm="transformer.word_embeddings_layernorm",
    final_norm="transformer.ln_f",
    attention_norm="transformer.h.{}.input_layernorm",
    qkv=("transformer.h.{}.self_attention.query_key_value",),
    o="transformer.h.{}.self_attention.dense",
    mlp_norm="transformer.h.{}.post_attention_layernorm",
    gate_up=("transformer.h.{}.mlp.dense_h_to_4h",),
    down="transformer.h.{}.mlp.dense_4h_to_h",
    qkv_by_group=True,
)

ALIBI = (
    Architecture(
        model_type="bloom",
        build=bloom,
        names=_BLOOM_NAMES,
        # The first releases were saved without the head's module around it.
        renames=(
            ("word_embeddings", "transformer.word_embeddings"),
            ("ln_f.", "transformer.ln_f."),
            ("h.", "transformer.h."),
        ),
    ),
    Architecture(
        model_type="mpt",
        build=mpt,
        names=WeightNames(
            embedding="transformer.wte",
            final_norm="transformer.norm_f",
            attention_norm="transformer.blocks.{}.norm_1",
            qkv=("transformer.blocks.{}.attn.Wqkv",),
            o="transformer.blocks.{}.attn.out_proj",
            mlp_norm="transformer.blocks.{}.norm_2",
            gate_up=("transformer.blocks.{}.ffn.up_proj",),
            down="transformer.blocks.{}.ffn.down_proj",
        ),
    ),
    Architecture(
        model_type="falcon",
        build=falcon,
        names=_BLOOM_NAMES,
        renames=(
            ("transformer.h.{}.ln_attn.", "transformer.h.{}.input_layernorm."),
            ("transformer.h.{}.ln_mlp.", "transformer.h.{}.post_attention_layernorm."),
        ),
    ),
)
