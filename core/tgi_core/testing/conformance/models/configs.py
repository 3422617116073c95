"""Configurations of tiny models, at least one for each model type that the core knows, as ``config.json`` has them."""

from __future__ import annotations

from collections.abc import Mapping

from tgi_core.testing.conformance.models.decoders import DECODERS
from tgi_core.testing.conformance.models.others import OTHERS
from tgi_core.testing.conformance.models.sizes import ModelConfig

_FEW = ("llama", "qwen3", "gemma3_text", "gpt2", "mixtral", "deepseek_v3", "qwen3_next", "mamba2", "t5")
"""Rotation and a table, norms of heads, a window beside full attention, experts, latent values, states, an encoder."""


def model_configs(head_dim: int, *, quick: bool = False) -> Mapping[str, ModelConfig]:
    """The tiny models by name, with heads of a size; ``quick`` gives few."""
    families = {**DECODERS, **OTHERS}
    return {name: family(head_dim) for name, family in families.items() if not quick or name in _FEW}


def large_config(head_dim: int, *, quick: bool = False) -> ModelConfig:
    """A model large enough to say something about speed, and small enough for a host."""
    heads = 4 if quick else 16
    sizes = {"hidden_size": heads * head_dim, "num_attention_heads": heads, "intermediate_size": 3 * heads * head_dim}
    return {**DECODERS["llama"](head_dim), **sizes, "num_key_value_heads": heads // 4}
