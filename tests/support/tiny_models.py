"""Tiny random models made with transformers, whose greedy continuations are worth comparing.

Random models like to repeat one token, which would hide most mistakes. The weights are therefore spread widely, and
``reference`` refuses a continuation that says little or whose best tokens lie too close together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.support.hf_versions import rope_settings

VOCAB = 160
PROMPT_LENGTHS = (3, 45, 17, 30, 1)
NEW_TOKENS = 24

SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
_GEMMA3_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"model_type": "llama", "num_key_value_heads": 4},
    "llama-gqa-bias": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        **rope_settings(_LLAMA3_ROPE),
    },
    "llama-linear": {"model_type": "llama", "tie_word_embeddings": True, **rope_settings(_LINEAR_ROPE)},
    "llama-yarn": {"model_type": "llama", **rope_settings(_YARN_ROPE)},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "mistral-window": {"model_type": "mistral", "sliding_window": 20},
    "qwen2": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 2},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True},
    "gemma": {"model_type": "gemma", "num_key_value_heads": 1, "initializer_range": 0.4},
    "gemma2": {
        "model_type": "gemma2",
        "sliding_window": 20,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 5.0,
    },
    "gemma3_text": {
        "model_type": "gemma3_text",
        "initializer_range": 0.15,
        "sliding_window": 20,
        "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        **rope_settings(_GEMMA3_ROPES),
    },
}
"""Variants by name; each is a model type with the features that set it apart."""

_SEEDS = {"gemma": 1, "gemma2": 1, "gemma3_text": 7}
"""Where seed 0 makes a model that repeats itself."""


class Reference(NamedTuple):
    """What transformers says: prompts, greedy continuations, and for each new token the logits it was chosen from."""

    prompts: list[list[int]]
    continuations: list[list[int]]
    logits: list[torch.Tensor]


def make_model(variant: str, folder: Path) -> PreTrainedModel:
    """Make a variant in float32 and save it into ``folder``."""
    values = {**SIZES, **CONFIGS[variant]}
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    torch.manual_seed(_SEEDS.get(variant, 0))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    # from_config leaves biases at 0 and norms at 1, where a loader's mistake would not show.
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
        elif "post_" in name and "gemma" in config.model_type:
            # These scale what a layer adds: it must outweigh Gemma's large embeddings, or every token repeats itself.
            torch.nn.init.normal_(parameter, mean=8.0, std=0.5)
        elif parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=0.0 if "gemma" in config.model_type else 1.0, std=0.2)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    return model


def reference(model: PreTrainedModel, *, seed: int = 0) -> Reference:
    """Greedy continuations of random prompts of very different lengths."""
    generator = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(VOCAB, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]
    continuations, logits = [], []
    gaps = []
    with torch.inference_mode():
        for prompt in prompts:
            tokens = list(prompt)
            for _ in range(NEW_TOKENS):
                tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
            chosen_from = model(torch.tensor([tokens[:-1]]), use_cache=False).logits[0, len(prompt) - 1 :]
            best = chosen_from.topk(2, dim=-1).values
            gaps.append((best[:, 0] - best[:, 1]).median().item())
            continuations.append(tokens[len(prompt) :])
            logits.append(chosen_from)
    distinct = [len(set(tokens)) for tokens in continuations]
    assert min(distinct) >= 8, f"a continuation says too little: {distinct} distinct tokens"
    assert min(gaps) > 0.1, f"the best tokens lie too close together: median gaps {gaps}"
    return Reference(prompts, continuations, logits)


def rewrite_config(folder: Path, change: Mapping[str, Any], drop: tuple[str, ...] = ()) -> None:
    """Change keys of a saved ``config.json``."""
    path = folder / "config.json"
    values = json.loads(path.read_text())
    for key in drop:
        values.pop(key, None)
    path.write_text(json.dumps(values | dict(change)))
