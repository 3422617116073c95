"""What is read of a configuration's quantization, and models whose weights are quantized."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.support import architectures, tiny_models
from tests.support.greedy import Reply, assert_greedy, make_prompts, reply_under_pressure
from tests.support.quantized import quantize_blocks, quantize_mxfp4, rewrite, spread_scale
from tests.support.shards import KERNELS, start_shard
from tgi_core.errors import ExitCode, StartupError
from tgi_core.models.choose import choose_model
from tgi_core.models.hf_config import HFConfig
from tgi_core.models.quantization import find_quantization
from tgi_core.weights.dequantized import Fp8, Mxfp4, Quantization
from tgi_cpu.kernels import CpuKernels

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1}
DEEPSEEK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def compressed(**weights: Any) -> dict[str, Any]:
    usual = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": usual | weights}},
    }


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"quantization_config": DEEPSEEK}, Fp8((128, 128))),
        ({"text_config": {"quantization_config": DEEPSEEK}}, Fp8((128, 128))),
        ({"quantization_config": {"quant_method": "fp8", "ignored_layers": ["lm_head"]}}, Fp8(None)),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": None}}, Fp8(None)),
        ({"quantization_config": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}}, Fp8(None)),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}, Fp8(None)),
        ({"quantization_config": compressed()}, Fp8(None)),
        ({"compression_config": compressed(strategy="tensor")}, Fp8(None)),
        ({"quantization_config": compressed(strategy="block", block_structure=[64, 32])}, Fp8((64, 32))),
        ({"quantization_config": compressed(strategy="block")}, Fp8((128, 128))),
        ({"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}, Mxfp4()),
    ],
)
def test_known_methods(config: Mapping[str, Any], expected: Quantization | None, tmp_path: Path) -> None:
    assert find_quantization(tmp_path, HFConfig(config)) == expected


def test_the_file_of_older_releases_of_model_optimizer(tmp_path: Path) -> None:
    path = tmp_path / "hf_quant_config.json"
    path.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}))
    assert find_quantization(tmp_path, HFConfig({})) == Fp8(None)
    path.write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    with pytest.raises(StartupError, match=r"hf_quant_config.json .* by `modelopt NVFP4`"):
        find_quantization(tmp_path, HFConfig({}))


@pytest.mark.parametrize(
    ("quantization", "told"),
    [
        ({"quant_method": "gptq", "bits": 4}, "`gptq`"),
        ({"quant_method": "awq"}, "`awq`"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "`bitsandbytes`"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, "`modelopt W4A16_AWQ`"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "`compressed-tensors pack-quantized`"),
        ({"bits": 4}, "does not name the method"),
        (compressed(num_bits=4), "4 bits"),
        (compressed(type="int"), "`int`"),
        (compressed(strategy="group"), "`group`"),
        (compressed(symmetric=False), "8 bits"),
        (compressed() | {"config_groups": {}}, "0 kinds"),
        (DEEPSEEK | {"weight_block_size": [0, 128]}, "[0, 128]"),
        (DEEPSEEK | {"weight_block_size": 128}, "weight_block_size"),
    ],
)
def test_other_methods_are_refused_by_name(quantization: Mapping[str, Any], told: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "quantization_config": quantization}))
    with pytest.raises(StartupError) as caught:
        choose_model(tmp_path)
    assert caught.value.exit_code is ExitCode.MODEL
    assert told in caught.value.cause
    assert "config.json" in caught.value.cause


BLOCK = (24, 40)


def is_quantized(name: str, tensor: Tensor) -> bool:
    """As DeepSeek's and Qwen's releases: the linears of layers, without routers."""
    return "_proj" in name.split(".")[-2] and tensor.dim() == 2


def as_fp8(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
    if not is_quantized(name, tensor):
        return {name: tensor}
    quantized, scale = quantize_blocks(tensor, BLOCK)
    return {name: quantized, f"{name}_scale_inv": scale}


def as_dequantized(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
    if not is_quantized(name, tensor):
        return {name: tensor}
    quantized, scale = quantize_blocks(tensor, BLOCK)
    return {name: quantized.float() * spread_scale(scale, BLOCK, (tensor.shape[0], tensor.shape[1]))}


def as_channels(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
    if not is_quantized(name, tensor):
        return {name: tensor}
    scale = tensor.abs().amax(dim=1, keepdim=True) / 448
    return {name: (tensor / scale).to(torch.float8_e4m3fn), f"{name}_scale": scale}


def as_dequantized_channels(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
    quantized = as_channels(name, tensor)
    return {name: quantized[name].float() * quantized.get(f"{name}_scale", torch.ones(()))}


def same_replies(first: list[Reply], second: list[Reply]) -> bool:
    """To the last bits, in which products of weights differ that begin elsewhere in memory."""
    return all(
        one.token_ids == other.token_ids and torch.allclose(one.logits_TV, other.logits_TV, rtol=1e-5, atol=1e-4)
        for one, other in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("variant", ["qwen3", "deepseek_v3"])
def test_fp8_in_blocks_equals_the_model_it_stands_for(variant: str, tmp_path: Path) -> None:
    """Dense, and with latent attention, experts, shared ones and a dense first layer."""
    support: Any = tiny_models if variant in tiny_models.CONFIGS else architectures
    support.make_model(variant, tmp_path / "whole")
    config = {"quantization_config": DEEPSEEK | {"weight_block_size": list(BLOCK)}}
    quantized = rewrite(tmp_path / "whole", tmp_path / "fp8", as_fp8, **config)
    dequantized = rewrite(tmp_path / "whole", tmp_path / "dequantized", as_dequantized)
    prompts = make_prompts(architectures.VOCAB)
    replies, expected = (reply_under_pressure(folder, KERNELS["cpu"](), prompts) for folder in (quantized, dequantized))
    assert same_replies(replies, expected)
    whole = reply_under_pressure(tmp_path / "whole", KERNELS["cpu"](), prompts)
    assert not same_replies(replies, whole)


def test_fp8_in_rows_and_what_is_told(tmp_path: Path) -> None:
    architectures.make_model("llama-dynamic", tmp_path / "whole")
    config = {"quantization_config": compressed()}
    quantized = rewrite(tmp_path / "whole", tmp_path / "fp8", as_channels, **config)
    dequantized = rewrite(tmp_path / "whole", tmp_path / "dequantized", as_dequantized_channels)
    prompts = make_prompts(architectures.VOCAB)
    replies, expected = (reply_under_pressure(folder, KERNELS["cpu"](), prompts) for folder in (quantized, dequantized))
    assert same_replies(replies, expected)
    shard, _ = start_shard(quantized, CpuKernels(), dtype="bfloat16")
    assert any("fp8 weights are dequantized to bfloat16" in note for note in shard.notes)
    shard.close()


def as_mxfp4(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return {name: tensor}
    blocks, scales = quantize_mxfp4(tensor.transpose(1, 2))
    return {f"{name}_blocks": blocks, f"{name}_scales": scales}


def as_transformers_dequantizes(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
    quantized = as_mxfp4(name, tensor)
    if name in quantized:
        return quantized
    numbers = convert_moe_packed_tensors(*quantized.values(), dtype=torch.float32)
    # Transformers 4.55 leaves the last step to its caller.
    return {name: numbers if numbers.shape == tensor.shape else numbers.transpose(1, 2)}


def test_mxfp4_equals_the_model_that_transformers_makes_of_it(tmp_path: Path) -> None:
    architectures.make_model("gpt_oss", tmp_path / "whole")
    config = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
    quantized = rewrite(tmp_path / "whole", tmp_path / "mxfp4", as_mxfp4, **config)
    dequantized = rewrite(tmp_path / "whole", tmp_path / "dequantized", as_transformers_dequantizes)
    prompts = make_prompts(architectures.VOCAB)
    replies, expected = (reply_under_pressure(folder, KERNELS["cpu"](), prompts) for folder in (quantized, dequantized))
    assert same_replies(replies, expected)
    model = AutoModelForCausalLM.from_pretrained(dequantized, attn_implementation="eager").float().eval()
    assert_greedy(replies, lambda ids_1T: model(ids_1T, use_cache=False).logits)
