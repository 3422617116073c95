"""What the configuration of each GGUF architecture has beside the usual keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tgi_core.weights.gguf.metadata import CONVERT_AGAIN, GgufMetadata, refuse
from tgi_core.weights.gguf.reader import GgufFile

# Layers of the largest Gemma 2 and 3 models, whose attention scale alone is not that of the head size.
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
_GEMMA3_PATTERN = 6
_COHERE2_PATTERN = 4
_GEMMA_ACTIVATION = "gelu_pytorch_tanh"


def _llama(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - one signature for all families
    experts = file.metadata.find_of_model("expert_count", int) or 0
    if experts:
        return {
            "model_type": "mixtral",
            "architectures": ["MixtralForCausalLM"],
            "hidden_act": "silu",
            "num_local_experts": experts,
            "num_experts_per_tok": file.metadata.need_of_model("expert_used_count", int),
            "sliding_window": None,
        }
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
    }


def _qwen2(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - as above
    return {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_act": "silu",
        "use_sliding_window": False,
    }


def _qwen3(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    return _qwen2(file, config) | {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
    }


def _qwen2moe(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    metadata = file.metadata
    return _qwen2(file, config) | {
        "model_type": "qwen2_moe",
        "architectures": ["Qwen2MoeForCausalLM"],
        **_qwen_experts(metadata),
        "norm_topk_prob": False,
        "shared_expert_intermediate_size": metadata.need_of_model("expert_shared_feed_forward_length", int),
    }


def _qwen3moe(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    return _qwen3(file, config) | {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        **_qwen_experts(file.metadata),
        # As llama.cpp: the file does not say it.
        "norm_topk_prob": True,
    }


def _qwen_experts(metadata: GgufMetadata) -> dict[str, Any]:
    return {
        "num_experts": metadata.need_of_model("expert_count", int),
        "num_experts_per_tok": metadata.need_of_model("expert_used_count", int),
        "moe_intermediate_size": metadata.need_of_model("expert_feed_forward_length", int),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _phi3(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - as above
    context = file.metadata.find_of_model("rope.scaling.original_context_length", int)
    return {
        "model_type": "phi3",
        "architectures": ["Phi3ForCausalLM"],
        "hidden_act": "silu",
        "original_max_position_embeddings": context or file.metadata.need_of_model("context_length", int),
        "sliding_window": file.metadata.find_of_model("attention.sliding_window", int) or None,
    }


def _granite(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    metadata = file.metadata
    return {
        "model_type": "granite",
        "architectures": ["GraniteForCausalLM"],
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "attention_multiplier": metadata.find_of_model("attention.scale", float) or config["head_dim"] ** -0.5,
        "embedding_multiplier": metadata.find_of_model("embedding_scale", float) or 1.0,
        "residual_multiplier": metadata.find_of_model("residual_scale", float) or 1.0,
        "logits_scaling": metadata.find_of_model("logit_scale", float) or 1.0,
    }


def _smollm3(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "smollm3",
        "architectures": ["SmolLM3ForCausalLM"],
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        # As llama.cpp: every fourth layer does not rotate.
        "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(config["num_hidden_layers"])],
        "use_sliding_window": False,
    }


def _olmo2(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - as above
    return {
        "model_type": "olmo2",
        "architectures": ["Olmo2ForCausalLM"],
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
    }


def _olmoe(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - as above
    metadata = file.metadata
    if metadata.find_of_model("attention.clamp_kqv", float):
        raise refuse(metadata.path, "cuts off queries and keys, which is not supported", "")
    return {
        "model_type": "olmoe",
        "architectures": ["OlmoeForCausalLM"],
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "num_experts": metadata.need_of_model("expert_count", int),
        "num_experts_per_tok": metadata.need_of_model("expert_used_count", int),
        # As llama.cpp: the file does not say it.
        "norm_topk_prob": False,
    }


def _cohere(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - as above
    return {
        "model_type": "cohere",
        "architectures": ["CohereForCausalLM"],
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "logit_scale": file.metadata.need_of_model("logit_scale", float),
        "use_qk_norm": False,
    }


def _cohere2(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    return {
        "model_type": "cohere2",
        "architectures": ["Cohere2ForCausalLM"],
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "logit_scale": file.metadata.need_of_model("logit_scale", float),
        "sliding_window": file.metadata.need_of_model("attention.sliding_window", int),
        # As llama.cpp: every fourth layer sees all.
        "layer_types": _layer_types([(layer + 1) % _COHERE2_PATTERN != 0 for layer in range(layers)]),
    }


def _glm4(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - as above
    return {
        "model_type": "glm4",
        "architectures": ["Glm4ForCausalLM"],
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
    }


def _starcoder2(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - as above
    return {
        "model_type": "starcoder2",
        "architectures": ["Starcoder2ForCausalLM"],
        "hidden_act": _GEMMA_ACTIVATION,
        "use_bias": "blk.0.attn_q.bias" in file.tensors,
        "sliding_window": None,
    }


def _gemma(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - as above
    return {
        "model_type": "gemma",
        "architectures": ["GemmaForCausalLM"],
        "hidden_act": _GEMMA_ACTIVATION,
        # Older transformers read this key for Gemma 1 too.
        "hidden_activation": _GEMMA_ACTIVATION,
        "attention_bias": False,
    }


def _gemma2(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    metadata = file.metadata
    layers = config["num_hidden_layers"]
    return {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_activation": _GEMMA_ACTIVATION,
        "attention_bias": False,
        "query_pre_attn_scalar": _query_scalar(metadata, config),
        "attn_logit_softcapping": metadata.need_of_model("attn_logit_softcapping", float),
        "final_logit_softcapping": metadata.need_of_model("final_logit_softcapping", float),
        "sliding_window": metadata.need_of_model("attention.sliding_window", int),
        "layer_types": _layer_types([layer % 2 == 0 for layer in range(layers)]),
    }


def _gemma3(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    metadata = file.metadata
    return {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_activation": _GEMMA_ACTIVATION,
        "attention_bias": False,
        "query_pre_attn_scalar": _query_scalar(metadata, config),
        "attn_logit_softcapping": metadata.find_of_model("attn_logit_softcapping", float),
        "final_logit_softcapping": metadata.find_of_model("final_logit_softcapping", float),
        "sliding_window": metadata.need_of_model("attention.sliding_window", int),
        "layer_types": _layer_types(_gemma3_sliding(metadata, config["num_hidden_layers"])),
        "rope_local_base_freq": metadata.find_of_model("rope.freq_base_swa", float) or 10_000.0,
    }


def _query_scalar(metadata: GgufMetadata, config: dict[str, Any]) -> int:
    """Gemma divides its queries by this number's square root."""
    scale = metadata.find_of_model("attention.scale", float)
    if scale:
        return round(scale**-2)
    if config["num_hidden_layers"] == _GEMMA_27B_LAYERS[metadata.architecture]:
        return int(config["hidden_size"]) // int(config["num_attention_heads"])
    return int(config["head_dim"])


def _gemma3_sliding(metadata: GgufMetadata, layers: int) -> list[bool]:
    key = "gemma3.attention.sliding_window_pattern"
    if metadata.is_array(key):
        flags = metadata.numbers(key)
        if flags is None or len(flags) != layers:
            raise refuse(metadata.path, f"has not {layers} entries at `{key}`", CONVERT_AGAIN)
        return [bool(flag) for flag in flags]
    pattern = metadata.find(key, int) or _GEMMA3_PATTERN
    return [(layer + 1) % pattern != 0 for layer in range(layers)]


def _layer_types(sliding: list[bool]) -> list[str]:
    return ["sliding_attention" if is_sliding else "full_attention" for is_sliding in sliding]


FAMILIES: Mapping[str, Callable[[GgufFile, dict[str, Any]], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen2moe": _qwen2moe,
    "qwen3moe": _qwen3moe,
    "phi3": _phi3,
    "granite": _granite,
    "smollm3": _smollm3,
    "olmo2": _olmo2,
    "olmoe": _olmoe,
    "starcoder2": _starcoder2,
    "command-r": _cohere,
    "cohere2": _cohere2,
    "glm4": _glm4,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
}
"""By architecture: from the file and the configuration so far to the keys that only this family has.

Each raises StartupError where the metadata lacks something or asks for what is not supported.
"""
