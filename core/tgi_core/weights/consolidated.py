"""Mistral's own checkpoints: ``consolidated*.safetensors`` beside ``params.json``, with other names and settings.

Queries and keys are stored for a rotation that pairs neighbouring features, where Hugging Face's pairs the halves of a
head; their rows are put in order as they are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tgi_core.errors import ExitCode, StartupError

if TYPE_CHECKING:
    import torch

CONSOLIDATED = "consolidated"
"""What the names of the files begin with."""

PARAMS_NAME = "params.json"

_OUTSIDE_LAYERS = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYERS = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.gate": "block_sparse_moe.gate",
    "gate": "block_sparse_moe.gate",
}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)\.weight")
_EXPERT = re.compile(r"(?:feed_forward\.)?experts\.(\d+)\.(w[123])")
_FIX = "Serve the version in Hugging Face's layout instead."


class _Moe(msgspec.Struct, forbid_unknown_fields=True):
    num_experts: int
    num_experts_per_tok: int


class Params(msgspec.Struct, forbid_unknown_fields=True):
    """``params.json``, with Mistral's names; a setting that is not known here would change what is computed."""

    dim: int
    n_layers: int
    n_heads: int
    hidden_dim: int
    vocab_size: int
    norm_eps: float
    head_dim: int | None = None
    n_kv_heads: int | None = None
    rope_theta: float = 10_000.0
    sliding_window: int | None = None
    max_seq_len: int | None = None
    max_position_embeddings: int | None = None
    tied_embeddings: bool = False
    use_biases: bool = False
    model_type: str = "transformer"
    moe: _Moe | None = None


class ConsolidatedNames:
    """Translates a checkpoint's names and layout to Hugging Face's."""

    def __init__(self, params: Params) -> None:
        self._heads = {"attention.wq": params.n_heads, "attention.wk": params.n_kv_heads or params.n_heads}

    @classmethod
    def read(cls, folder: Path) -> ConsolidatedNames:
        """Of the checkpoint in ``folder``.

        Raises:
            StartupError: there is no usable ``params.json``.
        """
        return cls(read_params(folder))

    def translate(self, name: str) -> tuple[str, Callable[[torch.Tensor], torch.Tensor] | None]:
        """Hugging Face's name of the tensor stored as ``name``, and what undoes the way it is stored.

        A name that is not Mistral's stays as it is; the model will say that it does not know it.
        """
        if name in _OUTSIDE_LAYERS:
            return _OUTSIDE_LAYERS[name], None
        match = _LAYER.fullmatch(name)
        if match is None:
            return name, None
        layer, module = match.groups()
        expert = _EXPERT.fullmatch(module)
        if expert is not None:
            module = f"block_sparse_moe.experts.{expert[1]}.{expert[2]}"
            return f"model.layers.{layer}.{module}.weight", None
        if module not in _IN_LAYERS:
            return name, None
        heads = self._heads.get(module)
        restore = None if heads is None else partial(_restore_rows, heads=heads)
        return f"model.layers.{layer}.{_IN_LAYERS[module]}.weight", restore


def read_params(folder: Path) -> Params:
    """``params.json`` of ``folder``.

    Raises:
        StartupError: it is missing, malformed, or asks for what is not known here.
    """
    path = folder / PARAMS_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Params)
    except FileNotFoundError:
        raise StartupError(
            f"{folder} has Mistral's consolidated weights, but not the {PARAMS_NAME} that belongs to them.",
            f"Copy {PARAMS_NAME} into the folder.",
            ExitCode.MODEL,
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise StartupError(f"{path} cannot be used: {error}.", _FIX, ExitCode.MODEL) from error


def config_of(params: Params) -> dict[str, Any]:
    """What ``params`` say, as Hugging Face's ``config.json``.

    Raises:
        StartupError: they ask for what Hugging Face's models of the kind do not have.
    """
    if params.use_biases or params.model_type != "transformer":
        raise StartupError(
            f"{PARAMS_NAME} asks for biases or for another model than a transformer.", _FIX, ExitCode.MODEL
        )
    config: dict[str, Any] = {
        "model_type": "mistral" if params.moe is None else "mixtral",
        "architectures": ["MistralForCausalLM" if params.moe is None else "MixtralForCausalLM"],
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": params.dim,
        "intermediate_size": params.hidden_dim,
        "num_hidden_layers": params.n_layers,
        "num_attention_heads": params.n_heads,
        "num_key_value_heads": params.n_kv_heads or params.n_heads,
        "head_dim": params.head_dim or params.dim // params.n_heads,
        "vocab_size": params.vocab_size,
        "rms_norm_eps": params.norm_eps,
        "rope_theta": params.rope_theta,
        "sliding_window": params.sliding_window,
        "max_position_embeddings": params.max_position_embeddings or params.max_seq_len or 32_768,
        "tie_word_embeddings": params.tied_embeddings,
    }
    if params.moe is not None:
        config |= {"num_local_experts": params.moe.num_experts, "num_experts_per_tok": params.moe.num_experts_per_tok}
    return config


def _restore_rows(tensor: torch.Tensor, *, heads: int) -> torch.Tensor:
    """Within each head, row (i, half) goes to (half, i)."""
    rows = tensor.shape[0]
    if rows % (2 * heads):
        return tensor  # the model refuses its shape
    return tensor.reshape(heads, rows // heads // 2, 2, -1).transpose(1, 2).reshape(tensor.shape)
