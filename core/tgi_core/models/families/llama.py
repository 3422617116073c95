"""Llama and the models that differ from it in a few numbers or names."""

from __future__ import annotations

from msgspec.structs import replace

from tgi_core.models.families.base import alibi_slopes, base
from tgi_core.models.family import Architecture
from tgi_core.models.hf_config import FULL, SLIDING, HFConfig
from tgi_core.models.names import WeightNames
from tgi_core.models.spec import ArchitectureSpec, LayerSpec


def llama(config: HFConfig, *, experts: bool = False) -> ArchitectureSpec:
    bias = config.get("attention_bias", bool, False)
    return replace(
        base(config, experts=experts), qkv_bias=bias, o_bias=bias, mlp_bias=config.get("mlp_bias", bool, False)
    )


def mistral(config: HFConfig, *, experts: bool = False, theta: float = 10_000.0, eps: float = 1e-6) -> ArchitectureSpec:
    spec = base(config, experts=experts, theta=theta, eps=eps)
    kind = SLIDING if config.has("sliding_window") else FULL
    return replace(spec, layers=config.layers(config.layer_types([kind] * len(spec.layers))))


def smollm3(config: HFConfig) -> ArchitectureSpec:
    spec = base(config, theta=2_000_000.0, tied=True)
    bias = config.get("attention_bias", bool, False)
    count = len(spec.layers)
    interval = config.size("no_rope_layer_interval", 4)
    rotates = config.get("no_rope_layers", list[int], [int((layer + 1) % interval != 0) for layer in range(count)])
    if len(rotates) != count:
        raise config.refuse("no_rope_layers", f"{len(rotates)} entries for {count} layers")
    windowed = config.get("use_sliding_window", bool, False) and config.has("sliding_window")
    kinds = [SLIDING if windowed and not rotate else FULL for rotate in rotates]
    layers = config.layers(config.layer_types(kinds))
    return replace(
        spec,
        layers=tuple(
            LayerSpec(layer.window, 0 if rotate else None) for layer, rotate in zip(layers, rotates, strict=True)
        ),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=config.get("mlp_bias", bool, False),
    )


def granite(config: HFConfig, *, experts: bool = False) -> ArchitectureSpec:
    return replace(
        llama(config, experts=experts),
        embedding_scale=config.positive("embedding_multiplier", 1.0),
        attention_scale=config.positive("attention_multiplier", 1.0),
        residual_scale=config.positive("residual_multiplier", 1.0),
        logit_scale=1 / config.positive("logits_scaling", 1.0),
    )


def phi3(config: HFConfig) -> ArchitectureSpec:
    if not config.has("original_max_position_embeddings"):
        config = config.with_values(original_max_position_embeddings=4096)
    spec = base(config, eps=1e-5)
    kind = SLIDING if config.has("sliding_window") else FULL
    return replace(spec, layers=config.layers([kind] * len(spec.layers)))


def exaone(config: HFConfig) -> ArchitectureSpec:
    names = {
        "num_hidden_layers": "num_layers",
        "hidden_act": "activation_function",
        "rms_norm_eps": "layer_norm_epsilon",
    }
    return base(config.with_names(**names), eps=1e-5)


def internlm2(config: HFConfig) -> ArchitectureSpec:
    bias = config.get("bias", bool, False)
    return replace(base(config), qkv_bias=bias, o_bias=bias)


_BAICHUAN2_VOCABULARY = 125_696


def baichuan(config: HFConfig) -> ArchitectureSpec:
    # The two sizes share a model type; only the configuration of the one that rotates names its positions so.
    rotates = config.has("max_position_embeddings")
    spec = base(config.with_names(max_position_embeddings="model_max_length"), theta=10_000.0 if rotates else None)
    return replace(
        spec,
        alibi_slopes=None if rotates else alibi_slopes(spec.num_heads),
        # Only the code of the second release scales the head's rows; its configuration does not say so.
        unit_head_rows=spec.vocab_size == _BAICHUAN2_VOCABULARY,
    )


_MERGED_NAMES = WeightNames(qkv=("model.layers.{}.self_attn.qkv_proj",), gate_up=("model.layers.{}.mlp.gate_up_proj",))

LLAMA = (
    Architecture(model_type="llama", build=llama),
    Architecture(model_type="mistral", build=mistral),
    Architecture(model_type="ministral", build=mistral),
    Architecture(model_type="smollm3", build=smollm3),
    Architecture(model_type="granite", build=granite),
    Architecture(model_type="phi3", build=phi3, names=_MERGED_NAMES),
    Architecture(
        model_type="exaone",
        build=exaone,
        names=WeightNames(
            embedding="transformer.wte",
            final_norm="transformer.ln_f",
            attention_norm="transformer.h.{}.ln_1",
            qkv=(
                "transformer.h.{}.attn.attention.q_proj",
                "transformer.h.{}.attn.attention.k_proj",
                "transformer.h.{}.attn.attention.v_proj",
            ),
            o="transformer.h.{}.attn.attention.out_proj",
            mlp_norm="transformer.h.{}.ln_2",
            gate_up=("transformer.h.{}.mlp.c_fc_0", "transformer.h.{}.mlp.c_fc_1"),
            down="transformer.h.{}.mlp.c_proj",
        ),
    ),
    Architecture(
        model_type="internlm2",
        build=internlm2,
        names=WeightNames(
            embedding="model.tok_embeddings",
            head="output",
            attention_norm="model.layers.{}.attention_norm",
            qkv=("model.layers.{}.attention.wqkv",),
            o="model.layers.{}.attention.wo",
            mlp_norm="model.layers.{}.ffn_norm",
            gate_up=("model.layers.{}.feed_forward.w1", "model.layers.{}.feed_forward.w3"),
            down="model.layers.{}.feed_forward.w2",
            qkv_by_group=True,
        ),
    ),
    Architecture(model_type="baichuan", build=baichuan, names=WeightNames(qkv=("model.layers.{}.self_attn.W_pack",))),
)
