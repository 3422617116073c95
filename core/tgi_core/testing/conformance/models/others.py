"""Configurations of models with latent attention, with slot states and with an encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tgi_core.testing.conformance.models.sizes import (
    HEADS,
    KV_HEADS,
    LAYERS,
    MAX_POSITIONS,
    VOCAB_SIZE,
    WINDOW,
    ModelConfig,
    usual,
)

_LATENT: Mapping[str, Any] = {
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24,
    "v_head_dim": 20,
    "moe_intermediate_size": 48,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}
_DELTA: Mapping[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
    "partial_rotary_factor": 0.5,
}
_DELTA_EXPERTS: Mapping[str, Any] = {
    **_DELTA,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 40,
}


def _sized(model_type: str, **changes: Any) -> Callable[[int], ModelConfig]:
    """With the size of a head in the configuration."""
    return lambda head_dim: {**usual(model_type, **changes)(head_dim), "head_dim": head_dim}


def _text_of(model_type: str, text: Callable[[int], ModelConfig]) -> Callable[[int], ModelConfig]:
    return lambda head_dim: {"model_type": model_type, "text_config": text(head_dim)}


_LLAMA4 = _sized(
    "llama4_text",
    intermediate_size_mlp=80,
    num_local_experts=4,
    num_experts_per_tok=1,
    interleave_moe_layer_step=2,
    no_rope_layers=[1, 0] * (LAYERS // 2),
    attention_chunk_size=WINDOW,
    use_qk_norm=True,
    floor_scale=16,
)


def _state_space(model_type: str, **changes: Any) -> Callable[[int], ModelConfig]:
    def config(head_dim: int) -> ModelConfig:
        return {
            "model_type": model_type,
            "vocab_size": VOCAB_SIZE,
            "hidden_size": HEADS * head_dim,
            "num_hidden_layers": LAYERS,
            "state_size": 16,
            "expand": 2,
            "conv_kernel": 4,
            "layer_norm_epsilon": 1e-5,
            **changes,
        }

    return config


def _mamba2(head_dim: int) -> ModelConfig:
    sizes = {"num_heads": 2 * HEADS, "head_dim": head_dim, "n_groups": KV_HEADS}
    return {**_state_space("mamba2")(head_dim), **sizes}


def _t5(model_type: str, projection: str) -> Callable[[int], ModelConfig]:
    def config(head_dim: int) -> ModelConfig:
        return {
            "model_type": model_type,
            "vocab_size": VOCAB_SIZE,
            "d_model": HEADS * head_dim,
            "d_kv": head_dim,
            "d_ff": 96,
            "num_layers": 2,
            "num_decoder_layers": LAYERS,
            "num_heads": HEADS,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 20,
            "feed_forward_proj": projection,
            "decoder_start_token_id": 0,
            "is_encoder_decoder": True,
        }

    return config


def _bart(model_type: str, **changes: Any) -> Callable[[int], ModelConfig]:
    def config(head_dim: int) -> ModelConfig:
        return {
            "model_type": model_type,
            "vocab_size": VOCAB_SIZE,
            "d_model": HEADS * head_dim,
            "encoder_layers": 2,
            "decoder_layers": LAYERS,
            "encoder_attention_heads": HEADS,
            "decoder_attention_heads": HEADS,
            "encoder_ffn_dim": 96,
            "decoder_ffn_dim": 96,
            "max_position_embeddings": MAX_POSITIONS,
            "activation_function": "gelu",
            "decoder_start_token_id": 2,
            "is_encoder_decoder": True,
            **changes,
        }

    return config


_QWEN3_5 = _sized("qwen3_5_text", **_DELTA)
_QWEN3_5_MOE = _sized("qwen3_5_moe_text", **_DELTA_EXPERTS)

OTHERS: Mapping[str, Callable[[int], ModelConfig]] = {
    "deepseek_v2": usual("deepseek_v2", **_LATENT, q_lora_rank=None, topk_method="group_limited_greedy"),
    "deepseek_v3": usual("deepseek_v3", **_LATENT, q_lora_rank=28, routed_scaling_factor=1.5),
    "kimi_k2": usual("kimi_k2", **_LATENT, q_lora_rank=28),
    "llama4_text": _LLAMA4,
    "llama4": _text_of("llama4", _LLAMA4),
    "qwen3_next": _sized("qwen3_next", **_DELTA_EXPERTS, norm_topk_prob=True),
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5": _text_of("qwen3_5", _QWEN3_5),
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "qwen3_5_moe": _text_of("qwen3_5_moe", _QWEN3_5_MOE),
    "mamba": _state_space("mamba"),
    "falcon_mamba": _state_space("falcon_mamba"),
    "mamba2": _mamba2,
    "t5": _t5("t5", "relu"),
    "mt5": _t5("mt5", "gated-gelu"),
    "umt5": _t5("umt5", "gated-gelu"),
    "bart": _bart("bart"),
    "mbart": _bart("mbart", scale_embedding=True),
    "pegasus": _bart("pegasus", scale_embedding=True),
    "marian": _bart("marian", activation_function="swish"),
    "blenderbot": _bart("blenderbot"),
    "blenderbot-small": _bart("blenderbot-small"),
    "m2m_100": _bart("m2m_100", activation_function="relu", scale_embedding=True),
}
"""By model type."""
