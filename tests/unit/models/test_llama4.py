"""Llama 4: its layers, its refusals, and the text part of a multimodal checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.architectures import make_model
from tests.support.driver import Driver, Generation
from tests.support.shards import WatchedReference, start_shard
from tgi_core.contract.experts import Scoring
from tgi_core.errors import StartupError, UnsupportedModelError
from tgi_core.models import ARCHITECTURES, ArchitectureSpec, HFConfig
from tgi_core.models.decoder import attention_specs
from tgi_core.models.spec import QKNorm, QueryTemperature

CONFIG: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "intermediate_size_mlp": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "num_local_experts": 5,
    "attention_chunk_size": 32,
}


def build(model_type: str = "llama4_text", **changes: Any) -> ArchitectureSpec:
    architecture = next(each for each in ARCHITECTURES if each.model_type == model_type)
    return architecture.build(HFConfig({**CONFIG, **changes}))


def test_chunks_and_layers_that_see_all() -> None:
    spec = build()
    assert [(layer.window, layer.rope) for layer in spec.layers] == [(32, 0)] * 3 + [(None, None)]
    chunked, whole = attention_specs(spec)
    assert (chunked.window, chunked.chunk) == (32, 32)
    assert (whole.window, whole.chunk) == (None, None)


def test_layers_by_name() -> None:
    types = ["full_attention", "chunked_attention"] * 2
    spec = build(layer_types=types, no_rope_layers=[1, 1, 0, 1], attention_chunk_size=None)
    assert [layer.window for layer in spec.layers] == [None, 8192, None, 8192]
    assert [layer.rope for layer in spec.layers] == [0, 0, None, 0]
    assert build(no_rope_layers=[]).layers == build().layers


def test_which_layers_have_experts() -> None:
    def flags(**changes: Any) -> list[bool]:
        return [layer.has_experts for layer in build(**changes).layers]

    assert flags() == [True] * 4
    assert flags(interleave_moe_layer_step=2) == [False, True, False, True]
    assert flags(moe_layers=[2]) == [False, False, True, False]


def test_experts() -> None:
    spec = build()
    experts = spec.experts
    assert experts is not None
    assert (experts.intermediate_size, experts.shared_size, spec.intermediate_size) == (96, 96, 80)
    assert (experts.routing.scoring, experts.routing.top_k) == (Scoring.SIGMOID_CHOSEN, 1)
    assert experts.weighs_inputs


def test_norms_and_temperature() -> None:
    assert build().qk_norm is QKNorm.HEAD_PLAIN
    assert build(use_qk_norm=False).qk_norm is None
    assert build().query_temperature == QueryTemperature(weight=0.1, interval=8192.0)
    tuned = build(attn_temperature_tuning=4, attn_scale=0.2, floor_scale=16)
    assert tuned.query_temperature == QueryTemperature(weight=0.2, interval=16.0)
    assert build(attn_temperature_tuning=False).query_temperature is None


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("key", "changes", "elsewhere"),
    [
        ("num_experts_per_tok", {"num_experts_per_tok": 2}, True),
        ("use_qk_norm", {"rope_scaling": YARN}, True),
        ("layer_types", {"layer_types": ["sliding_attention"] * 4}, True),
        ("layer_types", {"layer_types": ["full_attention"]}, False),
        ("no_rope_layers", {"no_rope_layers": [1]}, False),
        ("attention_chunk_size", {"attention_chunk_size": None}, False),
        ("attention_chunk_size", {"attention_chunk_size": 0}, False),
        ("attn_scale", {"attn_scale": -0.1}, False),
    ],
)
def test_refusals_name_the_key(key: str, changes: dict[str, Any], elsewhere: bool) -> None:
    with pytest.raises(StartupError) as caught:
        build(**changes)
    assert f"`{key}`" in caught.value.cause
    assert isinstance(caught.value, UnsupportedModelError) is elsewhere


def test_what_a_text_configuration_leaves_out() -> None:
    released = {"attention_chunk_size": 8192, "interleave_moe_layer_step": 2}
    spec = build("llama4", text_config=released)
    assert (spec.vocab_size, spec.hidden_size, len(spec.layers)) == (202_048, 5120, 48)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (40, 8, 128)
    assert spec.experts is not None
    assert (spec.experts.num_experts, spec.experts.intermediate_size, spec.intermediate_size) == (16, 8192, 16_384)


def test_the_text_part_of_a_multimodal_checkpoint(tmp_path: Path) -> None:
    text, whole = tmp_path / "text", tmp_path / "whole"
    for folder in (text, whole):
        folder.mkdir()
    make_model("llama4", text)
    tensors = {f"language_model.{name}": tensor for name, tensor in load_file(text / "model.safetensors").items()}
    tensors["vision_model.class_embedding"] = torch.ones(8)
    tensors["multi_modal_projector.linear_1.weight"] = torch.ones(64, 8)
    save_file(tensors, whole / "model.safetensors")
    config = json.loads((text / "config.json").read_text())
    (whole / "config.json").write_text(json.dumps({"model_type": "llama4", "text_config": config}))
    rows = []
    for folder in (text, whole):
        kernels = WatchedReference()
        shard, budget = start_shard(folder, kernels)
        kernels.logits.clear()
        Driver(shard, budget).run([Generation(list(range(50)), 1)])
        shard.close()
        rows.append(kernels.logits[0][0])
        # Blocks of earlier chunks are given back.
        assert [group.group.window for group in budget.groups] == [20, None]
    torch.testing.assert_close(*rows, rtol=1e-4, atol=1e-4)
