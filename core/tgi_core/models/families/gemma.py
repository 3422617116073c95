"""Gemma 1 to 3, text only."""

from __future__ import annotations

from msgspec.structs import replace

from tgi_core.models.families.base import base, optional
from tgi_core.models.family import Architecture
from tgi_core.models.hf_config import FULL, SLIDING, HFConfig
from tgi_core.models.names import WeightNames
from tgi_core.models.spec import ArchitectureSpec, Block, QKNorm
from tgi_core.text_defaults import TEXT_DEFAULTS


def gemma(config: HFConfig) -> ArchitectureSpec:
    spec = base(config, tied=True)
    bias = config.get("attention_bias", bool, False)
    # Gemma's first configurations say "gelu" and mean its tanh approximation; they lack the key that came after.
    means_tanh = spec.activation == "gelu" and not config.has("hidden_activation")
    return replace(
        spec,
        activation="gelu_tanh" if means_tanh else spec.activation,
        norm_offset=1.0,
        embedding_scale=spec.hidden_size**0.5,
        qkv_bias=bias,
        o_bias=bias,
    )


def gemma2(config: HFConfig) -> ArchitectureSpec:
    # Only null turns a cap off.
    usual = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    return _sandwiched(config.with_values(**{key: cap for key, cap in usual.items() if not config.names(key)}))


def _sandwiched(config: HFConfig) -> ArchitectureSpec:
    spec = gemma(config)
    kinds = [FULL if layer % 2 else SLIDING for layer in range(len(spec.layers))]
    return replace(
        spec,
        layers=config.layers(config.layer_types(kinds)),
        attention_scale=config.positive("query_pre_attn_scalar", 256.0) ** -0.5,
        attention_soft_cap=optional(config, "attn_logit_softcapping"),
        final_soft_cap=optional(config, "final_logit_softcapping"),
        block=Block.SANDWICH,
    )


def gemma3_text(config: HFConfig) -> ArchitectureSpec:
    spec = _sandwiched(config)
    pattern = config.size("sliding_window_pattern", 6)
    kinds = [SLIDING if (layer + 1) % pattern else FULL for layer in range(len(spec.layers))]
    return replace(
        spec,
        layers=config.layers(config.layer_types(kinds), {FULL: 0, SLIDING: 1}),
        ropes=(
            config.rope(spec.head_dim, FULL, 1_000_000.0),
            config.rope(spec.head_dim, SLIDING, 10_000.0, theta_key="rope_local_base_freq"),
        ),
        qk_norm=QKNorm.HEAD,
    )


def gemma3(config: HFConfig) -> ArchitectureSpec:
    return gemma3_text(config.section("text_config", TEXT_DEFAULTS["gemma3"]))


_SANDWICH_NAMES = WeightNames(
    attention_out_norm="model.layers.{}.post_attention_layernorm",
    mlp_norm="model.layers.{}.pre_feedforward_layernorm",
    mlp_out_norm="model.layers.{}.post_feedforward_layernorm",
)

_GEMMA3_TEXT = Architecture(model_type="gemma3_text", build=gemma3_text, names=_SANDWICH_NAMES)

GEMMA = (
    Architecture(model_type="gemma", build=gemma),
    Architecture(model_type="gemma2", build=gemma2, names=_SANDWICH_NAMES),
    _GEMMA3_TEXT,
    replace(
        _GEMMA3_TEXT,
        model_type="gemma3",
        build=gemma3,
        # Saved before transformers 4.52, and after it.
        renames=(
            ("language_model.model.", "model."),
            ("language_model.lm_head.", "lm_head."),
            ("model.language_model.", "model."),
        ),
        ignored=(
            "vision_tower.",
            "multi_modal_projector.",
            "model.vision_tower.",
            "model.multi_modal_projector.",
        ),
    ),
)
