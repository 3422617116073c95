"""Configurations of decoders that attend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tgi_core.testing.conformance.models.sizes import (
    ALTERNATING,
    HEADS,
    KV_HEADS,
    LAYERS,
    MAX_POSITIONS,
    VOCAB_SIZE,
    WINDOW,
    ModelConfig,
    gpt,
    usual,
)


def _experts(**changes: Any) -> dict[str, Any]:
    return {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 48, **changes}


def _opt(head_dim: int) -> ModelConfig:
    return {
        "model_type": "opt",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HEADS * head_dim,
        "word_embed_proj_dim": HEADS * head_dim,
        "ffn_dim": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": MAX_POSITIONS,
        "activation_function": "relu",
        "do_layer_norm_before": True,
    }


def _bloom(head_dim: int) -> ModelConfig:
    return {
        "model_type": "bloom",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HEADS * head_dim,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "layer_norm_epsilon": 1e-5,
    }


def _mpt(head_dim: int) -> ModelConfig:
    return {
        "model_type": "mpt",
        "vocab_size": VOCAB_SIZE,
        "d_model": HEADS * head_dim,
        "n_layers": LAYERS,
        "n_heads": HEADS,
        "max_seq_len": MAX_POSITIONS,
        "expansion_ratio": 4,
        "no_bias": True,
        "attn_config": {"alibi": True, "alibi_bias_max": 8, "clip_qkv": 2.0},
    }


def _dbrx(head_dim: int) -> ModelConfig:
    return {
        "model_type": "dbrx",
        "vocab_size": VOCAB_SIZE,
        "d_model": HEADS * head_dim,
        "n_layers": LAYERS,
        "n_heads": HEADS,
        "max_seq_len": MAX_POSITIONS,
        "attn_config": {"kv_n_heads": KV_HEADS, "clip_qkv": 2.0, "rope_theta": 10_000.0},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 5, "moe_top_k": 2},
    }


def _gpt_neo(head_dim: int) -> ModelConfig:
    return {
        "model_type": "gpt_neo",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HEADS * head_dim,
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "attention_types": [[["global", "local"], LAYERS // 2]],
        "window_size": WINDOW,
        "max_position_embeddings": MAX_POSITIONS,
        "activation_function": "gelu_new",
    }


def _gemma3(head_dim: int) -> ModelConfig:
    return {"model_type": "gemma3", "text_config": DECODERS["gemma3_text"](head_dim)}


_GEMMA: Mapping[str, Any] = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 16}

DECODERS: Mapping[str, Callable[[int], ModelConfig]] = {
    "llama": usual("llama"),
    "llama, biases, scaled rope": usual(
        "llama",
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "mistral": usual("mistral", sliding_window=WINDOW),
    "ministral": usual("ministral", sliding_window=WINDOW),
    "qwen2": usual("qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2),
    "qwen3": usual("qwen3"),
    "smollm3": usual("smollm3", no_rope_layer_interval=2, no_rope_layers=[1, 0, 1, 0]),
    "granite": usual("granite", embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=4.0),
    "phi3": usual("phi3", sliding_window=WINDOW, partial_rotary_factor=0.5),
    "exaone": usual("exaone", num_layers=LAYERS, activation_function="silu", layer_norm_epsilon=1e-5),
    "internlm2": usual("internlm2", bias=True),
    "baichuan": usual("baichuan"),
    "starcoder2": usual("starcoder2", sliding_window=WINDOW, hidden_act="gelu_pytorch_tanh", use_bias=True),
    "gemma": usual("gemma", hidden_activation="gelu_pytorch_tanh", num_key_value_heads=1),
    "gemma2": usual(
        "gemma2",
        **_GEMMA,
        sliding_window=WINDOW,
        layer_types=ALTERNATING,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
    ),
    "gemma3_text": usual("gemma3_text", **_GEMMA, sliding_window=WINDOW, layer_types=ALTERNATING),
    "gemma3": _gemma3,
    "stablelm": usual("stablelm", use_qkv_bias=True, qk_layernorm=True, partial_rotary_factor=0.25),
    "olmo": usual("olmo", clip_qkv=1.0),
    "olmo2": usual("olmo2"),
    "cohere": usual("cohere", use_qk_norm=True, logit_scale=0.5, layer_norm_eps=1e-5),
    "cohere2": usual("cohere2", sliding_window=WINDOW, logit_scale=0.5, layer_norm_eps=1e-5, layer_types=ALTERNATING),
    "glm": usual("glm", attention_bias=True, partial_rotary_factor=0.5),
    "glm4": usual("glm4", attention_bias=True, partial_rotary_factor=0.5),
    "exaone4": usual("exaone4", sliding_window=WINDOW, layer_types=ALTERNATING),
    "gpt_neox": usual("gpt_neox", hidden_act="gelu", rotary_pct=0.25, use_parallel_residual=True),
    "phi": usual("phi", hidden_act="gelu_new", partial_rotary_factor=0.5, layer_norm_eps=1e-5),
    "gpt2": gpt("gpt2"),
    "gptj": gpt("gptj", rotary_dim=8),
    "gpt_bigcode": gpt("gpt_bigcode", multi_query=True),
    "gpt_neo": _gpt_neo,
    "opt": _opt,
    "bloom": _bloom,
    "falcon": usual("falcon", new_decoder_architecture=True, num_kv_heads=KV_HEADS, parallel_attn=True),
    "mpt": _mpt,
    "mixtral": usual("mixtral", num_local_experts=5, num_experts_per_tok=2, sliding_window=WINDOW),
    "qwen2_moe": usual(
        "qwen2_moe", **_experts(shared_expert_intermediate_size=80, decoder_sparse_step=2, norm_topk_prob=False)
    ),
    "qwen3_moe": usual("qwen3_moe", **_experts(norm_topk_prob=True, mlp_only_layers=[1], decoder_sparse_step=1)),
    "olmoe": usual("olmoe", **_experts(norm_topk_prob=False)),
    "granitemoe": usual("granitemoe", num_local_experts=5, num_experts_per_tok=2, residual_multiplier=0.5),
    "phimoe": usual("phimoe", num_local_experts=5, num_experts_per_tok=2, router_jitter_noise=0.3),
    "glm4_moe": usual(
        "glm4_moe",
        **_experts(n_routed_experts=8, n_shared_experts=1, n_group=4, topk_group=2, routed_scaling_factor=1.5),
        first_k_dense_replace=1,
        norm_topk_prob=True,
        use_qk_norm=True,
        partial_rotary_factor=0.5,
    ),
    "dbrx": _dbrx,
    "gpt_oss": usual(
        "gpt_oss",
        num_local_experts=5,
        num_experts_per_tok=2,
        sliding_window=WINDOW,
        layer_types=ALTERNATING,
        attention_bias=True,
    ),
}
"""By a name for people, which begins with the model type."""
