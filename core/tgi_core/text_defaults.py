"""What the ``text_config`` of a multimodal type means by its silence: releases leave out what equals the defaults of
transformers' class."""

from __future__ import annotations

from collections.abc import Mapping

TEXT_DEFAULTS: Mapping[str, Mapping[str, int | str]] = {
    "gemma3": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
    "llama4": {
        "vocab_size": 202_048,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16_384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 131_072,
        "num_local_experts": 16,
    },
}
