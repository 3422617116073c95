"""Latent attention: what it keeps in memory, and what its models' configurations ask for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.architectures import make_model
from tests.support.driver import Driver, Generation
from tests.support.shards import WatchedCpu, WatchedReference, start_shard
from tgi_core.contract import Capabilities, ShardSpec
from tgi_core.contract.experts import RoutingSpec, Scoring
from tgi_core.errors import ExitCode, StartupError, UnsupportedModelError
from tgi_core.models import ARCHITECTURES, ArchitectureSpec, HFConfig
from tgi_core.shards import EagerShard
from tgi_core.shards.cpu_device import CpuDevice
from tgi_cpu.kernels import CpuKernels

CONFIG: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 48,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
}


def build(model_type: str, **changes: Any) -> ArchitectureSpec:
    architecture = next(each for each in ARCHITECTURES if each.model_type == model_type)
    return architecture.build(HFConfig(CONFIG | changes))


def routing(model_type: str, **changes: Any) -> RoutingSpec:
    experts = build(model_type, **changes).experts
    assert experts is not None
    return experts.routing


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the third release, with routed and shared experts in three of its four layers."""
    folder = tmp_path_factory.mktemp("deepseek")
    make_model("deepseek_v3", folder)
    return folder


def test_a_token_takes_one_row_of_the_cache(saved: Path) -> None:
    shard, budget = start_shard(saved, WatchedReference())
    shard.close()
    (only,) = budget.groups
    # 4 layers of 24 compressed and 8 rotated features in float32; its 4 heads would have 4 * (28 + 12) instead of 32.
    assert only.group.bytes_per_block == budget.block_size * 4 * (24 + 8) * 4


def test_weights_take_what_the_checkpoint_takes(saved: Path) -> None:
    shard, budget = start_shard(saved, WatchedReference())
    shard.close()
    stored = load_file(saved / "model.safetensors")
    assert sum(tensor.nbytes for tensor in stored.values()) in [line.size_bytes for line in budget.memory]


def test_attention_on_the_reference_is_told_and_asks_nothing_of_the_devices_heads(saved: Path) -> None:
    spec = ShardSpec(model_dir=saved, dtype="float32", load_format="dummy", cpu_threads=1)
    shard = EagerShard(spec, Capabilities(head_dims=(64, 128)), CpuDevice(), CpuKernels())
    assert any("of 4 heads over 1 key heads of 32 features, latent values runs on" in note for note in shard.notes)
    shard.close()


@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "something_else"])
def test_layers_that_predict_further_tokens_are_left_alone(saved: Path, tmp_path: Path, key: str) -> None:
    tensors = load_file(saved / "model.safetensors")
    own = [name for name in tensors if name.startswith("model.layers.3.")]
    tensors |= {name.replace(".3.", ".4."): tensors[name].clone() for name in own}
    tensors["model.layers.4.eh_proj.weight"] = torch.ones(64, 128)
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((saved / "config.json").read_text())
    config.pop("num_nextn_predict_layers", None)
    (tmp_path / "config.json").write_text(json.dumps(config | {key: 1}))
    if key == "something_else":
        with pytest.raises(StartupError, match=r"model\.layers\.4\."):
            start_shard(tmp_path, WatchedReference())
        return
    shard, budget = start_shard(tmp_path, WatchedReference())
    Driver(shard, budget).run([Generation([1, 2, 3], 2)])
    shard.close()


def test_the_bias_of_the_choice_keeps_its_precision(saved: Path) -> None:
    """It lies around 7 in the release and tells apart scores that bfloat16 would not."""

    class Watched(WatchedCpu):
        biases: list[torch.Tensor]

        def route(self, logits_TX: torch.Tensor, spec: RoutingSpec, bias_X: torch.Tensor | None) -> Any:
            assert bias_X is not None
            self.biases.append(bias_X)
            return super().route(logits_TX, spec, bias_X)

    kernels = Watched()
    kernels.biases = []
    shard, _ = start_shard(saved, kernels, dtype="bfloat16")
    shard.close()
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert torch.equal(kernels.biases[0], load_file(saved / "model.safetensors")[name])


def test_groups_by_their_best_expert_or_by_two() -> None:
    second = routing("deepseek_v2", topk_method="group_limited_greedy")
    assert (second.num_groups, second.top_groups, second.group_scores) == (4, 2, 1)
    assert second.scoring is Scoring.SOFTMAX
    assert routing("deepseek_v2", topk_method="greedy").num_groups == 1
    third = routing("deepseek_v3")
    assert (third.num_groups, third.top_groups, third.group_scores) == (4, 2, 2)
    assert third.scoring is Scoring.SIGMOID


def test_the_second_release_scales_only_weights_that_it_does_not_norm() -> None:
    plain = routing("deepseek_v2", routed_scaling_factor=16.0)
    assert (plain.renormalize, plain.scale) == (False, 16.0)
    normed = routing("deepseek_v2", routed_scaling_factor=16.0, norm_topk_prob=True)
    assert (normed.renormalize, normed.scale) == (True, 1.0)
    third = routing("deepseek_v3", routed_scaling_factor=2.5, norm_topk_prob=True)
    assert (third.renormalize, third.scale) == (True, 2.5)


def test_which_layers_have_experts() -> None:
    def flags(**changes: Any) -> list[bool]:
        return [layer.has_experts for layer in build("deepseek_v2", **changes).layers]

    assert flags(num_hidden_layers=5, first_k_dense_replace=1, moe_layer_freq=2) == [False, False, True, False, True]
    assert flags(n_routed_experts=None) == [False] * 4


def test_shared_experts() -> None:
    shared, alone = build("deepseek_v3", n_shared_experts=2).experts, build("deepseek_v3").experts
    assert shared is not None
    assert alone is not None
    assert (shared.shared_size, alone.shared_size) == (96, None)


def test_a_stretched_context_scales_the_scores() -> None:
    yarn = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "mscale": 1.0}
    usual = 28**-0.5
    assert build("deepseek_v3").attention_scale == usual
    assert build("deepseek_v3", rope_scaling=yarn).attention_scale == usual
    stretched = build("deepseek_v3", rope_scaling=yarn | {"mscale_all_dim": 0.5})
    assert stretched.attention_scale == pytest.approx(usual * (1 + 0.05 * math.log(40)) ** 2)


def test_kimi_k2_is_deepseek_3() -> None:
    assert build("kimi_k2") == build("deepseek_v3")


@pytest.mark.parametrize(
    ("model_type", "key", "value", "elsewhere"),
    [
        ("deepseek_v2", "topk_method", "noaux_tc", True),
        ("deepseek_v2", "scoring_func", "sigmoid", False),
        ("deepseek_v3", "scoring_func", "softmax", False),
        ("deepseek_v3", "topk_method", "greedy", False),
        ("deepseek_v3", "kv_lora_rank", None, False),
        ("deepseek_v3", "qk_rope_head_dim", 7, False),
        ("deepseek_v3", "n_routed_experts", 4, False),
        ("deepseek_v3", "num_nextn_predict_layers", -1, False),
    ],
)
def test_refusals_name_the_key(model_type: str, key: str, value: Any, elsewhere: bool) -> None:
    """Only what transformers' model of the type reads as well may go there instead."""
    with pytest.raises(StartupError) as caught:
        build(model_type, **{key: value})
    named = "head_dim" if key == "qk_rope_head_dim" else key
    assert f"`{named}`" in caught.value.cause
    assert caught.value.exit_code is ExitCode.MODEL
    assert isinstance(caught.value, UnsupportedModelError) is elsewhere
