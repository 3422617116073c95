"""The architectures that ship with the core. A new one is a function that fills a spec and an ``Architecture``."""

from __future__ import annotations

from msgspec.structs import replace

from tgi_core.model_folder import TEXT_DEFAULTS
from tgi_core.models.hf_config import FULL, LONGEST_CONTEXT, MOST_LAYERS, SLIDING, HFConfig
from tgi_core.models.spec import Architecture, ArchitectureSpec, LayerSpec, WeightNames


def _base(config: HFConfig, head_dim: int | None = None) -> ArchitectureSpec:
    """What all families share; ``head_dim`` is the size of a head where the configuration names none."""
    config.refuse_if_set("quantization_config", "use_bidirectional_attention", "num_local_experts", "num_experts")
    hidden_size, num_heads = config.size("hidden_size"), config.size("num_attention_heads")
    num_kv_heads = config.size("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.refuse("num_key_value_heads", f"it does not divide the {num_heads} attention heads")
    if head_dim is None and not config.has("head_dim") and hidden_size % num_heads:
        raise config.refuse("num_attention_heads", f"it does not divide the hidden size, {hidden_size}")
    head_dim = config.size("head_dim", head_dim or hidden_size // num_heads)
    return ArchitectureSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.size("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=config.size("max_position_embeddings", most=LONGEST_CONTEXT),
        layers=config.layers([FULL] * config.size("num_hidden_layers", most=MOST_LAYERS)),
        ropes=(config.rope(head_dim),),
        norm_eps=config.positive("rms_norm_eps", 1e-6),
        activation=config.activation("hidden_activation", "hidden_act"),
        attention_scale=head_dim**-0.5,
        tied_head=config.get("tie_word_embeddings", bool, False),
    )


def _llama(config: HFConfig) -> ArchitectureSpec:
    bias = config.get("attention_bias", bool, False)
    return replace(_base(config), qkv_bias=bias, o_bias=bias, mlp_bias=config.get("mlp_bias", bool, False))


def _mistral(config: HFConfig) -> ArchitectureSpec:
    base = _base(config)
    kind = SLIDING if config.has("sliding_window") else FULL
    return replace(base, layers=config.layers(config.layer_types([kind] * len(base.layers))))


def _qwen_layers(config: HFConfig, num_layers: int) -> tuple[LayerSpec, ...]:
    windowed = config.get("use_sliding_window", bool, False) and config.has("sliding_window")
    first = config.get("max_window_layers", int, 0)
    kinds = [SLIDING if windowed and layer >= first else FULL for layer in range(num_layers)]
    return config.layers(config.layer_types(kinds))


def _qwen2(config: HFConfig) -> ArchitectureSpec:
    base = _base(config)
    return replace(base, layers=_qwen_layers(config, len(base.layers)), qkv_bias=True)


def _qwen3(config: HFConfig) -> ArchitectureSpec:
    base = _base(config, head_dim=128)
    bias = config.get("attention_bias", bool, False)
    layers = _qwen_layers(config, len(base.layers))
    return replace(base, layers=layers, qkv_bias=bias, o_bias=bias, qk_norm=True)


def _gemma(config: HFConfig) -> ArchitectureSpec:
    base = _base(config)
    bias = config.get("attention_bias", bool, False)
    return replace(
        base,
        # Gemma's first configurations say "gelu" and mean its tanh approximation.
        activation="gelu_tanh" if base.activation == "gelu" else base.activation,
        norm_offset=1.0,
        embedding_scale=base.hidden_size**0.5,
        qkv_bias=bias,
        o_bias=bias,
        tied_head=config.get("tie_word_embeddings", bool, True),
    )


def _gemma2(config: HFConfig) -> ArchitectureSpec:
    base = _gemma(config)
    kinds = [FULL if layer % 2 else SLIDING for layer in range(len(base.layers))]
    return replace(
        base,
        layers=config.layers(config.layer_types(kinds)),
        attention_scale=config.positive("query_pre_attn_scalar", 256.0) ** -0.5,
        attention_soft_cap=_soft_cap(config, "attn_logit_softcapping"),
        final_soft_cap=_soft_cap(config, "final_logit_softcapping"),
        sandwich_norms=True,
    )


def _soft_cap(config: HFConfig, key: str) -> float | None:
    return config.positive(key) if config.has(key) else None


def _gemma3_text(config: HFConfig) -> ArchitectureSpec:
    base = _gemma2(config)
    pattern = config.size("sliding_window_pattern", 6)
    kinds = [SLIDING if (layer + 1) % pattern else FULL for layer in range(len(base.layers))]
    return replace(
        base,
        layers=config.layers(config.layer_types(kinds), {FULL: 0, SLIDING: 1}),
        ropes=(
            config.rope(base.head_dim, FULL, 1_000_000.0),
            config.rope(base.head_dim, SLIDING, 10_000.0, theta_key="rope_local_base_freq"),
        ),
        qk_norm=True,
    )


def _gemma3(config: HFConfig) -> ArchitectureSpec:
    return _gemma3_text(config.section("text_config", TEXT_DEFAULTS["gemma3"]))


_SANDWICH_NAMES = WeightNames(
    attention_out_norm="model.layers.{}.post_attention_layernorm",
    mlp_norm="model.layers.{}.pre_feedforward_layernorm",
    mlp_out_norm="model.layers.{}.post_feedforward_layernorm",
)

_GEMMA3_TEXT = Architecture(model_type="gemma3_text", build=_gemma3_text, names=_SANDWICH_NAMES)

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(model_type="llama", build=_llama),
    Architecture(model_type="mistral", build=_mistral),
    Architecture(model_type="qwen2", build=_qwen2),
    Architecture(model_type="qwen3", build=_qwen3),
    Architecture(model_type="gemma", build=_gemma),
    Architecture(model_type="gemma2", build=_gemma2, names=_SANDWICH_NAMES),
    _GEMMA3_TEXT,
    replace(
        _GEMMA3_TEXT,
        model_type="gemma3",
        build=_gemma3,
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
