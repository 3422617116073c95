"""Tiny random models of every architecture, each with the features that set it apart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.support.hf_versions import rope_settings

VOCAB = 160

_USUAL: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
}
_GPT: Mapping[str, Any] = {
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 256,
    "initializer_range": 0.25,
}


def _usual(model_type: str, **changes: Any) -> Mapping[str, Any]:
    return {"model_type": model_type, **_USUAL, **changes}


def _gpt(model_type: str, **changes: Any) -> Mapping[str, Any]:
    return {"model_type": model_type, **_GPT, **changes}


def _rope(**parameters: Any) -> dict[str, Any]:
    return rope_settings({"rope_theta": 10_000.0, **parameters})


_LONG_ROPE = {"short_factor": [1.0 + pair / 8 for pair in range(8)], "long_factor": [2.0 + pair for pair in range(8)]}


def _deepseek(model_type: str, **changes: Any) -> Mapping[str, Any]:
    sizes = {
        "num_key_value_heads": 4,
        "kv_lora_rank": 24,
        "qk_nope_head_dim": 20,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "moe_intermediate_size": 48,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_shared_experts": 2,
        "routed_scaling_factor": 1.5,
    }
    return _usual(model_type, **{**sizes, **changes})


def _llama4(**changes: Any) -> Mapping[str, Any]:
    sizes = {
        "head_dim": 16,
        "intermediate_size_mlp": 80,
        "num_local_experts": 5,
        "attention_chunk_size": 20,
        "floor_scale": 16,
        "attn_scale": 0.5,
    }
    return _usual("llama4_text", **{**sizes, **changes})


def _delta(model_type: str, **changes: Any) -> Mapping[str, Any]:
    """Chunks of steps and of the delta rule cut its prompts at different places."""
    sizes = {
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 20,
        "full_attention_interval": 2,
        "rms_norm_eps": 1e-2,
        "initializer_range": 0.15,
    }
    return _usual(model_type, **{**sizes, **changes})


_DELTA_EXPERTS = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
}
_OPT: Mapping[str, Any] = {
    "model_type": "opt",
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "init_std": 0.25,
}
_FALCON: Mapping[str, Any] = {
    "model_type": "falcon",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
}

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama-dynamic": _usual("llama", **_rope(rope_type="dynamic", factor=2.0)),
    "ministral": _usual("ministral", sliding_window=20, head_dim=16),
    "phi3": _usual("phi3", sliding_window=20, **_rope(rope_type="default", partial_rotary_factor=0.5)),
    "phi3-longrope": _usual("phi3", original_max_position_embeddings=128, **_rope(rope_type="longrope", **_LONG_ROPE)),
    "phi3-longrope-long": _usual(
        "phi3",
        original_max_position_embeddings=1,
        **_rope(rope_type="longrope", attention_factor=1.25, **_LONG_ROPE),
    ),
    "smollm3": _usual("smollm3", use_sliding_window=True, sliding_window=20, no_rope_layer_interval=2),
    "granite": _usual(
        "granite",
        attention_bias=True,
        mlp_bias=True,
        embedding_multiplier=3.0,
        residual_multiplier=0.5,
        attention_multiplier=0.2,
        logits_scaling=4.0,
    ),
    "starcoder2": _usual("starcoder2", sliding_window=20),
    "stablelm": _usual("stablelm", use_qkv_bias=True, qk_layernorm=True),
    "stablelm-parallel": _usual("stablelm", use_parallel_residual=True),
    "olmo": _usual("olmo", clip_qkv=1.0),
    "olmo2": _usual("olmo2", attention_bias=True),
    "cohere": _usual("cohere", use_qk_norm=True, logit_scale=0.5, attention_bias=True),
    "cohere2": _usual(
        "cohere2", sliding_window=20, logit_scale=0.5, layer_types=["sliding_attention", "full_attention"] * 2
    ),
    "glm": _usual("glm", head_dim=16),
    "glm4": _usual("glm4", head_dim=16),
    "exaone4": _usual("exaone4", sliding_window=20, sliding_window_pattern=2),
    "exaone4-full": _usual("exaone4", sliding_window=None, layer_types=["full_attention"] * 4),
    "gpt2": _gpt("gpt2", n_inner=96),
    "gpt_neo": {
        "model_type": "gpt_neo",
        "hidden_size": 64,
        "num_layers": 4,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 20,
        "max_position_embeddings": 256,
        "initializer_range": 0.25,
    },
    "gptj": _gpt("gptj", rotary_dim=8),
    "gpt_neox": _usual("gpt_neox"),
    "gpt_neox-sequential": _usual("gpt_neox", use_parallel_residual=False, attention_bias=False),
    "gpt_bigcode": _gpt("gpt_bigcode"),
    "gpt_bigcode-heads": _gpt("gpt_bigcode", multi_query=False),
    "phi": _usual("phi"),
    "opt": _OPT,
    "opt-350m": {**_OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 32},
    "opt-galactica": {
        **_OPT,
        "enable_bias": False,
        "layer_norm_elementwise_affine": False,
        "activation_function": "gelu",
    },
    "bloom": {"model_type": "bloom", "hidden_size": 64, "n_layer": 4, "n_head": 4, "initializer_range": 0.25},
    "bloom-6-heads": {"model_type": "bloom", "hidden_size": 96, "n_layer": 4, "n_head": 6, "initializer_range": 0.2},
    "mpt": {
        "model_type": "mpt",
        "d_model": 64,
        "n_layers": 4,
        "n_heads": 4,
        "max_seq_len": 256,
        "initializer_range": 0.25,
        "attn_config": {"clip_qkv": 2.0, "softmax_scale": 0.4},
    },
    "mpt-6-heads": {
        "model_type": "mpt",
        "d_model": 96,
        "n_layers": 4,
        "n_heads": 6,
        "max_seq_len": 256,
    },
    "falcon-7b": _FALCON,
    "falcon-40b": {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon-11b": {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    "falcon-rw": {**_FALCON, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    "mixtral": _usual("mixtral", num_local_experts=5, sliding_window=20),
    "qwen2_moe": _usual(
        "qwen2_moe",
        num_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        shared_expert_intermediate_size=80,
        decoder_sparse_step=2,
    ),
    "qwen3_moe": _usual(
        "qwen3_moe",
        num_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        head_dim=16,
        norm_topk_prob=True,
        mlp_only_layers=[1],
        use_sliding_window=True,
        sliding_window=20,
    ),
    "olmoe": _usual("olmoe", num_experts=5, num_experts_per_tok=3),
    "granitemoe": _usual("granitemoe", num_local_experts=5, attention_multiplier=0.2, residual_multiplier=0.5),
    "phimoe": _usual("phimoe", num_local_experts=5, attention_bias=True, lm_head_bias=True, router_jitter_noise=0.3),
    "glm4_moe": _usual(
        "glm4_moe",
        n_routed_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=48,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=1.5,
        use_qk_norm=True,
        attention_bias=True,
        head_dim=16,
    ),
    "dbrx": {
        "model_type": "dbrx",
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 4,
        "max_seq_len": 256,
        "initializer_range": 0.25,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 2.0, "rope_theta": 10_000.0},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 5, "moe_top_k": 2, "hidden_size": 64},
    },
    "gpt_oss": _usual(
        "gpt_oss",
        num_local_experts=5,
        num_experts_per_tok=2,
        head_dim=16,
        sliding_window=20,
        layer_types=["sliding_attention", "full_attention"] * 2,
        **_rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, truncate=False),
    ),
    "deepseek_v2": _deepseek(
        "deepseek_v2",
        q_lora_rank=40,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
        rms_norm_eps=1e-3,
        mlp_bias=True,
        **_rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, mscale=0.707, mscale_all_dim=1.0),
    ),
    "deepseek_v2-lite": _deepseek(
        "deepseek_v2", q_lora_rank=None, topk_method="greedy", n_group=1, topk_group=1, attention_bias=True
    ),
    "deepseek_v3": _deepseek(
        "deepseek_v3",
        q_lora_rank=40,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
        attention_bias=True,
        **_rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0),
    ),
    "deepseek_v3-halves": _deepseek(
        "deepseek_v3",
        q_lora_rank=None,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=2,
        norm_topk_prob=False,
        rope_interleave=False,
    ),
    "llama4": _llama4(
        num_hidden_layers=5,
        interleave_moe_layer_step=2,
        attention_bias=True,
        **_rope(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "qwen3_next": _delta("qwen3_next", decoder_sparse_step=2, linear_conv_kernel_dim=3, **_DELTA_EXPERTS),
    "qwen3_5_text": _delta("qwen3_5_text", attention_bias=True, tie_word_embeddings=True, full_attention_interval=3),
    "qwen3_5_moe_text": _delta("qwen3_5_moe_text", linear_num_value_heads=2, **_DELTA_EXPERTS),
    "llama4-no-norm": _llama4(
        use_qk_norm=False, moe_layers=[1, 2, 3], no_rope_layers=[1, 0, 1, 0], attn_temperature_tuning=False
    ),
}
"""Variants by name: the model type, then what is special about it."""


NOT_IN_TRANSFORMERS_4: Mapping[str, str] = {
    "ministral": "it has no such model type",
    "phi3-longrope": "its configuration names the kind of a rope scaling otherwise",
    "phi3-longrope-long": "its configuration names the kind of a rope scaling otherwise",
    "stablelm": "it cannot make norms without a bias",
    "cohere2": "its configuration warns of its own attribute",
    "gpt_bigcode": "it uses torch.jit.script, of which torch warns",
    "gpt_bigcode-heads": "it uses torch.jit.script, of which torch warns",
    "opt-galactica": "it cannot make norms without weights",
    "deepseek_v2": "it does not scale the scores where a context is stretched",
    "llama4": "it weighs tokens with the scores of others",
    "llama4-no-norm": "it weighs tokens with the scores of others",
    "qwen3_next": "it has no such model type",
    "qwen3_5_text": "it has no such model type",
    "qwen3_5_moe_text": "it has no such model type",
    "dbrx": "its configuration does not take the experts' hidden size",
}
"""Variants that transformers 4 cannot make, so that there is nothing to compare with, and why."""


def unavailable(variant: str) -> str:
    """Why the installed transformers cannot make a variant; "" where it can."""
    return "" if int(transformers.__version__.split(".")[0]) > 4 else NOT_IN_TRANSFORMERS_4.get(variant, "")


def make_model(variant: str, folder: Path) -> PreTrainedModel:
    """Make a variant in float32 and save it into ``folder``."""
    values = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **CONFIGS[variant]}
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    torch.manual_seed(0)
    # The eager attention of transformers 5.17 adds Falcon's bias twice, and not as its models were trained.
    attention = "sdpa" if values.get("alibi") else "eager"
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().eval()
    spread(model)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    return model


def spread(model: torch.nn.Module) -> None:
    """Random biases and norms, which models are made without: a loader's mistake would not show.

    Small embeddings, so that what the layers add outweighs the last token: or else a model with a tied head repeats it.
    """
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
        elif "embeddings_layernorm" in name:
            torch.nn.init.normal_(parameter, mean=0.2, std=0.02)
        elif name.endswith("A_log"):
            # Heads that remember for long, and heads that soon forget.
            torch.nn.init.uniform_(parameter, -5.0, 1.0)
        elif parameter.dim() == 1 or "norm" in name.split(".")[-2]:
            # Norms that store their weight less 1 are made as zeros.
            torch.nn.init.normal_(parameter, mean=1.0 if parameter.any() else 0.0, std=0.2)
        elif name.endswith(("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")):
            parameter.data.mul_(0.3)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            # Above 0 as in the releases: transformers 4 may choose what a group's 0 stands for.
            torch.nn.init.normal_(buffer, mean=1.0, std=0.2)
