"""A GGUF file's metadata as ``config.json`` and ``generation_config.json``.

Rope settings use the older flat keys (``rope_theta``, ``rope_scaling``), which every transformers from 4.55 on reads.
"""

from __future__ import annotations

from typing import Any

from tgi_core.weights.gguf.families import FAMILIES
from tgi_core.weights.gguf.metadata import GgufMetadata, refuse
from tgi_core.weights.gguf.reader import GgufFile
from tgi_core.weights.gguf.rope import rope_scaling
from tgi_core.weights.gguf.vocabulary import end_token_ids, special_token_ids

_PARTIAL_ROTARY = ("phi3", "glm4")
_LAYER_NORMS = {"starcoder2": "norm_epsilon", "command-r": "layer_norm_eps", "cohere2": "layer_norm_eps"}
"""Architectures with layer norms, and what their configurations call the number in them."""


def model_config(file: GgufFile, dtype: str) -> dict[str, Any]:
    """What goes into ``config.json``; ``dtype`` is the name of the written weights' type.

    Raises:
        StartupError: the metadata lacks something or asks for what is not supported.
    """
    metadata = file.metadata
    heads = metadata.need_of_model("attention.head_count", int)
    hidden_size = metadata.need_of_model("embedding_length", int)
    head_dim = metadata.find_of_model("attention.key_length", int) or hidden_size // heads
    rotary = metadata.find_of_model("rope.dimension_count", int) or head_dim
    if rotary != head_dim and metadata.architecture not in _PARTIAL_ROTARY:
        raise refuse(metadata.path, f"rotates {rotary} of {head_dim} features of a head, which is not supported", "")
    config: dict[str, Any] = {
        "torch_dtype": dtype,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": _intermediate_size(metadata),
        "num_hidden_layers": metadata.need_of_model("block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.find_of_model("attention.head_count_kv", int) or heads,
        "head_dim": head_dim,
        "max_position_embeddings": metadata.need_of_model("context_length", int),
        **_norm_eps(metadata),
        "rope_theta": metadata.find_of_model("rope.freq_base", float) or 10_000.0,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_dropout": 0.0,
        **special_token_ids(metadata),
    }
    if rotary != head_dim:
        config["partial_rotary_factor"] = rotary / head_dim
    scaling = rope_scaling(file, config["rope_theta"], head_dim)
    if scaling is not None:
        config["rope_scaling"] = scaling
    return config | FAMILIES[metadata.architecture](file, config)


def _intermediate_size(metadata: GgufMetadata) -> int:
    size = metadata.find_of_model("feed_forward_length", int)
    # A model whose every layer has experts may leave it out.
    return size or metadata.need_of_model("expert_feed_forward_length", int)


def _norm_eps(metadata: GgufMetadata) -> dict[str, float]:
    key = _LAYER_NORMS.get(metadata.architecture)
    if key is not None:
        return {key: metadata.need_of_model("attention.layer_norm_epsilon", float)}
    return {"rms_norm_eps": metadata.need_of_model("attention.layer_norm_rms_epsilon", float)}


def generation_config(metadata: GgufMetadata) -> dict[str, Any]:
    """What goes into ``generation_config.json``: the special tokens, with every token that ends a reply as EOS."""
    ids: dict[str, Any] = dict(special_token_ids(metadata))
    ends = end_token_ids(metadata)
    if ends:
        ids["eos_token_id"] = ends
    return ids
