"""Tiny random state space models made with transformers, each with the features that set it apart."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated

VOCAB = 160

_USUAL: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "state_size": 16,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_HEADS: Mapping[str, Any] = {"model_type": "mamba2", "num_heads": 8, "head_dim": 16}

# Transformers 4 norms all groups together, unlike the authors of the models and later versions.
_NUM_GROUPS = 2 if "group_size" in inspect.signature(MambaRMSNormGated.__init__).parameters else 1

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "mamba": {"model_type": "mamba"},
    "mamba-biased": {
        "model_type": "mamba",
        "use_bias": True,
        "use_conv_bias": False,
        "conv_kernel": 3,
        "time_step_rank": 5,
        "expand": 3,
        "residual_in_fp32": False,
        "tie_word_embeddings": False,
    },
    "mamba2": {**_HEADS, "n_groups": 1},
    "mamba2-biased": {
        **_HEADS,
        "n_groups": _NUM_GROUPS,
        "use_bias": True,
        "use_conv_bias": False,
        "chunk_size": 16,
        "time_step_limit": (0.02, 0.5),
        "residual_in_fp32": False,
    },
    "falcon_mamba": {"model_type": "falcon_mamba"},
}


def make_model(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Make the model and save it into ``folder``."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**{**_USUAL, **CONFIGS[name]})
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    for parameter_name, parameter in model.named_parameters():
        _spread(parameter_name, parameter)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    return model


def _spread(name: str, parameter: torch.nn.Parameter) -> None:
    if name.endswith("A_log"):
        torch.nn.init.uniform_(parameter, -2.0, 2.5)
    elif name.endswith("bias"):
        torch.nn.init.normal_(parameter, std=0.5)
    elif parameter.dim() == 1:
        torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    else:
        torch.nn.init.normal_(parameter, std=0.5 if "conv1d" in name else 0.2)
