"""Tiny random models of architectures that have no spec of ours and run as transformers' own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tgi_core.plugins import Plugins

VOCAB = 160

_USUAL: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": None,
}
_EXPERTS: Mapping[str, Any] = {
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_num_experts": 4,
    "moe_k": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_WINDOW: Mapping[str, Any] = {
    "sliding_window": 20,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "apertus": {},
    "arcee": {},
    "biogpt": {},
    "bitnet": {},
    "ernie4_5": {"use_bias": True},
    "ernie4_5_moe": {**_EXPERTS, "moe_layer_start_index": 1},
    "flex_olmo": _EXPERTS,
    "fuyu": {},
    "glm4_moe": _EXPERTS,
    "granitemoeshared": {**_EXPERTS, "shared_intermediate_size": 32},
    "helium": {},
    "hunyuan_v1_dense": {},
    "hunyuan_v1_moe": {**_EXPERTS, "moe_topk": 2},
    "jais2": {},
    "minimax_m2": _EXPERTS,
    "nanochat": {},
    "nemotron": {},
    "olmo3": _WINDOW,
    "persimmon": {},
    "seed_oss": {},
    "vaultgemma": {**_WINDOW, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0},
    "youtu": {
        "head_dim": 8,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "num_key_value_heads": 4,
    },
}
"""What sets each apart, by model type."""


_SINCE_5 = ("ernie4_5_moe", "flex_olmo", "fuyu", "glm4_moe", "granitemoeshared", "nemotron")
"""Those that transformers 4 has too, with experts or attention that cannot be followed or exchanged there."""


def other_types() -> list[str]:
    """Those that have no architecture of ours."""
    ours = Plugins.discover().architectures()
    return [name for name in CONFIGS if name not in ours]


def runnable_types() -> list[str]:
    """Those of them that the installed transformers can run over another attention."""
    found = [name for name in other_types() if name in CONFIG_MAPPING]
    return found if transformers.__version__ >= "5" else [name for name in found if name not in _SINCE_5]


def make_other(model_type: str, folder: Path, **changes: Any) -> PreTrainedModel:
    """Make a model in float32 and save it into ``folder``."""
    config = AutoConfig.for_model(model_type, **{**_USUAL, **CONFIGS.get(model_type, {}), **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
        elif parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
        else:
            torch.nn.init.normal_(parameter, std=0.2)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    return model
