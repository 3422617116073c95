"""Mistral's own checkpoints load as the same model in Hugging Face's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, MistralConfig

from tests.support.hf_versions import rope_theta
from tgi_core.errors import StartupError
from tgi_core.weights.checkpoint import Checkpoint
from tgi_core.weights.consolidated import config_of, read_params
from tgi_core.weights.resolve import resolve_model

PARAMS: dict[str, Any] = {
    "dim": 32,
    "n_layers": 2,
    "head_dim": 8,
    "hidden_dim": 48,
    "n_heads": 4,
    "n_kv_heads": 2,
    "norm_eps": 1e-5,
    "vocab_size": 40,
    "rope_theta": 1_000_000.0,
}
MODULES = {
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
}


def interleave(rows: Tensor, heads: int) -> Tensor:
    """The rows of a projection as Mistral stores them: the two features of a pair side by side."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def write(folder: Path) -> torch.nn.Module:
    """A random model in Mistral's layout; returns it."""
    torch.manual_seed(0)
    config = MistralConfig(
        hidden_size=32,
        num_hidden_layers=2,
        head_dim=8,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=40,
    )
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config).float()
    stored = {"output.weight": "lm_head.weight", "norm.weight": "model.norm.weight"}
    stored["tok_embeddings.weight"] = "model.embed_tokens.weight"
    for layer in range(2):
        for ours, theirs in MODULES.items():
            stored[f"layers.{layer}.{theirs}.weight"] = f"model.layers.{layer}.{ours}.weight"
    heads = {"attention.wq.weight": 4, "attention.wk.weight": 2}
    tensors = {}
    for name, original in stored.items():
        tensor = model.state_dict()[original]
        num_heads = next((count for end, count in heads.items() if name.endswith(end)), None)
        tensors[name] = (tensor if num_heads is None else interleave(tensor, num_heads)).contiguous()
    save_file(tensors, folder / "consolidated.safetensors")
    (folder / "params.json").write_text(json.dumps(PARAMS))
    return model


def test_tensors_and_settings(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    model = write(tmp_path / "model")
    folder = resolve_model(str(tmp_path / "model"), cache_dir=tmp_path / "cache")
    checkpoint = Checkpoint.open(folder)
    state = model.state_dict()
    assert checkpoint.names == state.keys()
    for name, tensor in state.items():
        assert checkpoint.shape(name) == tensor.shape
        assert torch.equal(checkpoint.tensor(name), tensor), name
    config = AutoConfig.from_pretrained(folder)
    assert (config.model_type, config.head_dim, config.sliding_window) == ("mistral", 8, None)
    assert rope_theta(config) == 1_000_000.0


def test_experts(tmp_path: Path) -> None:
    moe = {"num_experts": 8, "num_experts_per_tok": 2}
    (tmp_path / "params.json").write_text(json.dumps(PARAMS | {"moe": moe}))
    config = config_of(read_params(tmp_path))
    assert (config["model_type"], config["num_local_experts"]) == ("mixtral", 8)


def test_experts_names(tmp_path: Path) -> None:
    save_file({"layers.3.feed_forward.experts.5.w2.weight": torch.zeros(2)}, tmp_path / "consolidated.00.safetensors")
    (tmp_path / "params.json").write_text(json.dumps(PARAMS))
    assert Checkpoint.open(tmp_path).names == {"model.layers.3.block_sparse_moe.experts.5.w2.weight"}


@pytest.mark.parametrize(
    ("change", "told"),
    [({"quantization": {}}, "quantization"), ({"dim": "wide"}, "dim"), ({"use_biases": True}, "biases")],
)
def test_settings_that_are_not_known_are_refused(tmp_path: Path, change: dict[str, object], told: str) -> None:
    (tmp_path / "params.json").write_text(json.dumps(PARAMS | change))
    with pytest.raises(StartupError, match=told):
        resolve_model(str(tmp_path), cache_dir=tmp_path / "cache")


def test_weights_without_their_settings(tmp_path: Path) -> None:
    save_file({"norm.weight": torch.zeros(2)}, tmp_path / "consolidated.safetensors")
    with pytest.raises(StartupError, match=r"not the params.json"):
        Checkpoint.open(tmp_path)


def test_other_files_come_first(tmp_path: Path) -> None:
    save_file({"norm.weight": torch.zeros(2)}, tmp_path / "consolidated.safetensors")
    save_file({"model.norm.weight": torch.zeros(3)}, tmp_path / "weights.safetensors")
    assert Checkpoint.open(tmp_path).names == {"model.norm.weight"}
