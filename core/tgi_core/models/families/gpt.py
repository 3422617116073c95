"""GPT-2 and its descendants with layer norms and a plain MLP: GPT-Neo, StarCoder 1 and 2, OPT."""

from __future__ import annotations

from msgspec.structs import replace

from tgi_core.models.families.base import GPT_NAMES, base
from tgi_core.models.family import Architecture
from tgi_core.models.hf_config import FULL, LONGEST_CONTEXT, SLIDING, HFConfig
from tgi_core.models.names import WeightNames
from tgi_core.models.spec import ArchitectureSpec, Block, LayerSpec, Norm

_OPT_OFFSET = 2
"""The first rows of OPT's table belonged to padding."""


def gpt2(config: HFConfig) -> ArchitectureSpec:
    config.refuse_if_set("scale_attn_by_inverse_layer_idx", "add_cross_attention")
    spec = _learned(config.with_names(**GPT_NAMES), activation="gelu_new")
    return spec if config.get("scale_attn_weights", bool, True) else replace(spec, attention_scale=1.0)


def gpt_neo(config: HFConfig) -> ArchitectureSpec:
    names = {**GPT_NAMES, "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"}
    spec = _learned(config.with_names(**names), activation="gelu_new")
    window = config.size("window_size", 256, most=LONGEST_CONTEXT)
    patterns = config.get("attention_types", list[tuple[list[str], int]], [(["global", "local"], len(spec.layers))])
    usual = [kind for pattern, times in patterns for kind in pattern * times]
    kinds = config.get("attention_layers", list[str], usual)[: len(spec.layers)]
    if len(kinds) != len(spec.layers) or set(kinds) - {"global", "local"}:
        raise config.refuse("attention_layers", f"it must name {len(spec.layers)} layers global or local")
    layers = tuple(LayerSpec(window if kind == "local" else None, None) for kind in kinds)
    return replace(spec, layers=layers, attention_scale=1.0, qkv_bias=False)


def gpt_bigcode(config: HFConfig) -> ArchitectureSpec:
    config.refuse_if_set("add_cross_attention")
    multi_query = config.get("multi_query", bool, True)
    named = config.with_names(**GPT_NAMES)
    spec = _learned(
        named, activation="gelu_pytorch_tanh", num_kv_heads=1 if multi_query else named.size("num_attention_heads")
    )
    return spec if config.get("scale_attn_weights", bool, True) else replace(spec, attention_scale=1.0)


def _learned(config: HFConfig, *, activation: str, num_kv_heads: int | None = None) -> ArchitectureSpec:
    """Learned positions, layer norms and biases everywhere."""
    spec = base(config, num_kv_heads=num_kv_heads, theta=None, gated=False, activation=activation, eps=1e-5, tied=True)
    return replace(
        spec,
        norm=Norm.LAYER_BIAS,
        learned_positions=spec.max_positions,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
    )


def opt(config: HFConfig) -> ArchitectureSpec:
    config.refuse_if_set("_remove_final_layer_norm")
    names = {"intermediate_size": "ffn_dim", "hidden_act": "activation_function"}
    spec = base(config.with_names(**names), theta=None, gated=False, activation="relu", eps=1e-5, tied=True)
    bias = config.get("enable_bias", bool, True)
    width = config.size("word_embed_proj_dim", spec.hidden_size)
    return replace(
        spec,
        norm=Norm.LAYER_BIAS if config.get("layer_norm_elementwise_affine", bool, True) else Norm.LAYER_PLAIN,
        block=Block.PRE if config.get("do_layer_norm_before", bool, True) else Block.POST,
        learned_positions=spec.max_positions + _OPT_OFFSET,
        position_offset=_OPT_OFFSET,
        embedding_size=width if width != spec.hidden_size else None,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
    )


def starcoder2(config: HFConfig) -> ArchitectureSpec:
    spec = base(config.with_names(rms_norm_eps="norm_epsilon"), gated=False, eps=1e-5, tied=True)
    bias = config.get("use_bias", bool, True)
    kind = SLIDING if config.has("sliding_window") else FULL
    return replace(
        spec,
        layers=config.layers([kind] * len(spec.layers)),
        norm=Norm.LAYER_BIAS,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
    )


_GPT2_NAMES = WeightNames(
    embedding="transformer.wte",
    positions="transformer.wpe",
    final_norm="transformer.ln_f",
    attention_norm="transformer.h.{}.ln_1",
    qkv=("transformer.h.{}.attn.c_attn",),
    o="transformer.h.{}.attn.c_proj",
    mlp_norm="transformer.h.{}.ln_2",
    gate_up=("transformer.h.{}.mlp.c_fc",),
    down="transformer.h.{}.mlp.c_proj",
)

GPT = (
    Architecture(
        model_type="gpt2",
        build=gpt2,
        names=replace(_GPT2_NAMES, transposed=True),
        # The first release was saved without the head's module around it.
        renames=(
            ("wte.", "transformer.wte."),
            ("wpe.", "transformer.wpe."),
            ("ln_f.", "transformer.ln_f."),
            ("h.", "transformer.h."),
        ),
        ignored=(
            "h.{}.attn.bias",
            "h.{}.attn.masked_bias",
            "transformer.h.{}.attn.bias",
            "transformer.h.{}.attn.masked_bias",
        ),
    ),
    Architecture(
        model_type="gpt_neo",
        build=gpt_neo,
        names=replace(
            _GPT2_NAMES,
            qkv=(
                "transformer.h.{}.attn.attention.q_proj",
                "transformer.h.{}.attn.attention.k_proj",
                "transformer.h.{}.attn.attention.v_proj",
            ),
            o="transformer.h.{}.attn.attention.out_proj",
        ),
        ignored=("transformer.h.{}.attn.attention.bias", "transformer.h.{}.attn.attention.masked_bias"),
    ),
    Architecture(
        model_type="gpt_bigcode",
        build=gpt_bigcode,
        names=replace(_GPT2_NAMES, qkv_by_group=True),
        ignored=("transformer.h.{}.attn.bias", "transformer.h.{}.attn.masked_bias"),
    ),
    Architecture(
        model_type="opt",
        build=opt,
        names=WeightNames(
            embedding="model.decoder.embed_tokens",
            positions="model.decoder.embed_positions",
            project_in="model.decoder.project_in",
            project_out="model.decoder.project_out",
            final_norm="model.decoder.final_layer_norm",
            attention_norm="model.decoder.layers.{}.self_attn_layer_norm",
            qkv=(
                "model.decoder.layers.{}.self_attn.q_proj",
                "model.decoder.layers.{}.self_attn.k_proj",
                "model.decoder.layers.{}.self_attn.v_proj",
            ),
            o="model.decoder.layers.{}.self_attn.out_proj",
            mlp_norm="model.decoder.layers.{}.final_layer_norm",
            gate_up=("model.decoder.layers.{}.fc1",),
            down="model.decoder.layers.{}.fc2",
        ),
        renames=(("decoder.", "model.decoder."),),
    ),
    Architecture(
        model_type="starcoder2",
        build=starcoder2,
        names=WeightNames(gate_up=("model.layers.{}.mlp.c_fc",), down="model.layers.{}.mlp.c_proj"),
    ),
)
