"""Models whose attention and MLP read the same stream: Cohere's, Phi 1 to 2, GPT-J, GPT-NeoX, StableLM."""

from __future__ import annotations

from msgspec.structs import replace

from tgi_core.models.families.base import GPT_NAMES, base
from tgi_core.models.family import Architecture
from tgi_core.models.hf_config import FULL, SLIDING, HFConfig
from tgi_core.models.names import WeightNames
from tgi_core.models.ropes import RopeSpec
from tgi_core.models.spec import ArchitectureSpec, Block, Norm, QKNorm


def cohere(config: HFConfig, *, theta: float = 500_000.0) -> ArchitectureSpec:
    spec = base(config.with_names(rms_norm_eps="layer_norm_eps"), theta=theta, eps=1e-5, tied=True)
    bias = config.get("attention_bias", bool, False)
    return replace(
        spec,
        block=Block.PARALLEL,
        norm=Norm.LAYER,
        qk_norm=QKNorm.HEAD_LAYER if config.get("use_qk_norm", bool, False) else None,
        logit_scale=config.positive("logit_scale", 0.0625),
        qkv_bias=bias,
        o_bias=bias,
    )


def cohere2(config: HFConfig) -> ArchitectureSpec:
    spec = cohere(config, theta=10_000.0)
    pattern = config.size("sliding_window_pattern", 4)
    kinds = [SLIDING if (layer + 1) % pattern else FULL for layer in range(len(spec.layers))]
    # Only layers with a window know positions.
    return replace(spec, layers=config.layers(config.layer_types(kinds), {FULL: None, SLIDING: 0}))


def phi(config: HFConfig) -> ArchitectureSpec:
    config.refuse_if_set("qk_layernorm")
    spec = base(config.with_names(rms_norm_eps="layer_norm_eps"), partial_rotary=0.5, gated=False, eps=1e-5)
    return replace(
        spec,
        block=Block.PARALLEL,
        norm=Norm.LAYER_BIAS,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        head_bias=True,
    )


def gptj(config: HFConfig) -> ArchitectureSpec:
    config = config.with_names(**GPT_NAMES)
    spec = base(config, theta=None, gated=False, activation="gelu_new", eps=1e-5)
    rotary_dim = config.size("rotary_dim", min(64, spec.head_dim), most=spec.head_dim)
    if rotary_dim % 2:
        raise config.refuse("rotary_dim", "features are rotated in pairs")
    return replace(
        spec,
        layers=config.layers([FULL] * len(spec.layers)),
        ropes=(RopeSpec(theta=10_000.0, rotary_dim=rotary_dim),),
        block=Block.PARALLEL,
        norm=Norm.LAYER_BIAS,
        mlp_bias=True,
        head_bias=True,
    )


def gpt_neox(config: HFConfig) -> ArchitectureSpec:
    names = {"rms_norm_eps": "layer_norm_eps", "rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
    spec = base(
        config.with_names(**names),
        num_kv_heads=config.size("num_attention_heads"),
        partial_rotary=0.25,
        gated=False,
        activation="gelu",
        eps=1e-5,
    )
    parallel = config.get("use_parallel_residual", bool, True)
    bias = config.get("attention_bias", bool, True)
    return replace(
        spec,
        block=Block.PARALLEL_TWO_NORMS if parallel else Block.PRE,
        norm=Norm.LAYER_BIAS,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=True,
    )


def stablelm(config: HFConfig) -> ArchitectureSpec:
    spec = base(config.with_names(rms_norm_eps="layer_norm_eps"), partial_rotary=0.25, eps=1e-5)
    return replace(
        spec,
        block=Block.PARALLEL if config.get("use_parallel_residual", bool, False) else Block.PRE,
        norm=Norm.LAYER_BIAS,
        qk_norm=QKNorm.HEAD_LAYER if config.get("qk_layernorm", bool, False) else None,
        qkv_bias=config.get("use_qkv_bias", bool, False),
    )


_COHERE_NAMES = WeightNames(adjacent_pairs=True)

PARALLEL = (
    Architecture(model_type="cohere", build=cohere, names=_COHERE_NAMES),
    Architecture(model_type="cohere2", build=cohere2, names=_COHERE_NAMES),
    Architecture(
        model_type="phi",
        build=phi,
        names=WeightNames(
            final_norm="model.final_layernorm",
            o="model.layers.{}.self_attn.dense",
            gate_up=("model.layers.{}.mlp.fc1",),
            down="model.layers.{}.mlp.fc2",
        ),
    ),
    Architecture(
        model_type="gptj",
        build=gptj,
        names=WeightNames(
            embedding="transformer.wte",
            final_norm="transformer.ln_f",
            attention_norm="transformer.h.{}.ln_1",
            qkv=("transformer.h.{}.attn.q_proj", "transformer.h.{}.attn.k_proj", "transformer.h.{}.attn.v_proj"),
            o="transformer.h.{}.attn.out_proj",
            gate_up=("transformer.h.{}.mlp.fc_in",),
            down="transformer.h.{}.mlp.fc_out",
            adjacent_pairs=True,
        ),
        ignored=("transformer.h.{}.attn.bias", "transformer.h.{}.attn.masked_bias"),
    ),
    Architecture(
        model_type="gpt_neox",
        build=gpt_neox,
        names=WeightNames(
            embedding="gpt_neox.embed_in",
            final_norm="gpt_neox.final_layer_norm",
            head="embed_out",
            attention_norm="gpt_neox.layers.{}.input_layernorm",
            qkv=("gpt_neox.layers.{}.attention.query_key_value",),
            o="gpt_neox.layers.{}.attention.dense",
            mlp_norm="gpt_neox.layers.{}.post_attention_layernorm",
            gate_up=("gpt_neox.layers.{}.mlp.dense_h_to_4h",),
            down="gpt_neox.layers.{}.mlp.dense_4h_to_h",
            qkv_by_group=True,
        ),
        ignored=("gpt_neox.layers.{}.attention.bias", "gpt_neox.layers.{}.attention.masked_bias"),
    ),
    Architecture(
        model_type="stablelm",
        build=stablelm,
        names=WeightNames(
            q_norm="model.layers.{}.self_attn.q_layernorm.norms.{}",
            k_norm="model.layers.{}.self_attn.k_layernorm.norms.{}",
        ),
    ),
)
