"""Tiny random models that cannot run over another attention: they keep states, or attend in a way of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_STATES: Mapping[str, Any] = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 8}
_GPT: Mapping[str, Any] = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256}

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "falcon_h1": {**_STATES, "mamba_d_ssm": 64},
    "gpt_neox_japanese": {},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 2,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "minimax": {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "openai-gpt": _GPT,
    "recurrent_gemma": {},
    "rwkv": {},
    "xglm": {"d_model": 64, "ffn_dim": 96, "num_layers": 2, "attention_heads": 4},
}
"""What sets each apart, by model type."""

_ENCODER_DECODER: Mapping[str, Any] = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 64,
}

ENCODER_DECODERS: Mapping[str, Mapping[str, Any]] = {
    "led": {
        "model_type": "led",
        "attention_window": 8,
        "max_encoder_position_embeddings": 64,
        "max_decoder_position_embeddings": 64,
        **_ENCODER_DECODER,
    },
    "pegasus_x": {"model_type": "pegasus_x", "block_size": 8, "num_global_tokens": 4, **_ENCODER_DECODER},
    "plbart": {"model_type": "plbart", **_ENCODER_DECODER},
}
"""By model type, as ``encoder_decoders.make_model`` takes them."""
