"""What the tiny models have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

ModelConfig = Mapping[str, Any]

VOCAB_SIZE = 160
MAX_POSITIONS = 4096
LAYERS, HEADS, KV_HEADS = 4, 4, 2
WINDOW = 20
"""Not a multiple of a block."""

ALTERNATING = ["sliding_attention", "full_attention"] * (LAYERS // 2)


def usual(model_type: str, **changes: Any) -> Callable[[int], ModelConfig]:
    """The keys that most families have, for heads of a size."""

    def config(head_dim: int) -> ModelConfig:
        return {
            "model_type": model_type,
            "vocab_size": VOCAB_SIZE,
            "hidden_size": HEADS * head_dim,
            "intermediate_size": 96,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "max_position_embeddings": MAX_POSITIONS,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
            "tie_word_embeddings": False,
            **changes,
        }

    return config


def gpt(model_type: str, **changes: Any) -> Callable[[int], ModelConfig]:
    """The keys of GPT-2 and what came from it."""

    def config(head_dim: int) -> ModelConfig:
        return {
            "model_type": model_type,
            "vocab_size": VOCAB_SIZE,
            "n_embd": HEADS * head_dim,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "n_positions": MAX_POSITIONS,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            **changes,
        }

    return config
