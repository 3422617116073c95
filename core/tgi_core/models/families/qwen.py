"""Qwen 2 and 3."""

from __future__ import annotations

from msgspec.structs import replace

from tgi_core.models.families.base import base
from tgi_core.models.family import Architecture
from tgi_core.models.hf_config import FULL, SLIDING, HFConfig
from tgi_core.models.spec import ArchitectureSpec, LayerSpec, QKNorm


def qwen_layers(config: HFConfig, num_layers: int) -> tuple[LayerSpec, ...]:
    """Windows from ``layer_types``, or in the last layers from ``max_window_layers`` on."""
    windowed = config.get("use_sliding_window", bool, False) and config.has("sliding_window")
    first = config.get("max_window_layers", int, 0)
    kinds = [SLIDING if windowed and layer >= first else FULL for layer in range(num_layers)]
    return config.layers(config.layer_types(kinds))


def qwen2(config: HFConfig) -> ArchitectureSpec:
    spec = base(config)
    return replace(spec, layers=qwen_layers(config, len(spec.layers)), qkv_bias=True)


def qwen3(config: HFConfig) -> ArchitectureSpec:
    spec = base(config, head_dim=128)
    bias = config.get("attention_bias", bool, False)
    layers = qwen_layers(config, len(spec.layers))
    return replace(spec, layers=layers, qkv_bias=bias, o_bias=bias, qk_norm=QKNorm.HEAD)


QWEN = (Architecture(model_type="qwen2", build=qwen2), Architecture(model_type="qwen3", build=qwen3))
