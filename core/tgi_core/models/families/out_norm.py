"""Models that norm, clip or gate in their own ways: OLMo, OLMo 2, GLM, GLM 4 and EXAONE 4."""

from __future__ import annotations

from msgspec.structs import replace

from tgi_core.models.families.base import base, optional
from tgi_core.models.family import Architecture
from tgi_core.models.hf_config import FULL, SLIDING, HFConfig
from tgi_core.models.names import WeightNames
from tgi_core.models.spec import ArchitectureSpec, Block, Norm, QKNorm


def olmo(config: HFConfig) -> ArchitectureSpec:
    bias = config.get("attention_bias", bool, False)
    return replace(
        base(config.with_names(rms_norm_eps="layer_norm_eps"), eps=1e-5),
        norm=Norm.LAYER_PLAIN,
        qkv_clip=optional(config, "clip_qkv"),
        qkv_bias=bias,
        o_bias=bias,
    )


def olmo2(config: HFConfig) -> ArchitectureSpec:
    bias = config.get("attention_bias", bool, False)
    return replace(base(config, eps=1e-5), block=Block.OUT, qk_norm=QKNorm.WIDTH, qkv_bias=bias, o_bias=bias)


def glm(config: HFConfig) -> ArchitectureSpec:
    spec = base(config, head_dim=128, partial_rotary=0.5, eps=1.5625e-07)
    return replace(spec, qkv_bias=config.get("attention_bias", bool, True))


def glm4(config: HFConfig) -> ArchitectureSpec:
    return replace(glm(config), block=Block.SANDWICH)


def exaone4(config: HFConfig) -> ArchitectureSpec:
    if not config.names("sliding_window"):
        # Only null means that there is none.
        config = config.with_values(sliding_window=4096)
    spec = base(config, eps=1e-5)
    layers = spec.layers
    if config.has("sliding_window"):
        kinds = _exaone4_kinds(config, len(layers))
        # Beside layers with a window, those without know no positions.
        layers = config.layers(config.layer_types(kinds), {FULL: None, SLIDING: 0})
    return replace(spec, layers=layers, block=Block.OUT, qk_norm=QKNorm.HEAD)


def _exaone4_kinds(config: HFConfig, num_layers: int) -> list[str]:
    key = "sliding_window_pattern"
    pattern: object = config.get(key, object, 4)
    if isinstance(pattern, str):
        if not pattern or set(pattern) - {"L", "G"}:
            raise config.refuse(key, "it must be a period or a word of L and G")
        kinds = [SLIDING if pattern[layer % len(pattern)] == "L" else FULL for layer in range(num_layers)]
        return [*kinds[:-1], FULL]
    period = config.size(key, 4)
    return [SLIDING if (layer + 1) % period else FULL for layer in range(num_layers)]


_OUT_NAMES = WeightNames(
    attention_out_norm="model.layers.{}.post_attention_layernorm",
    mlp_out_norm="model.layers.{}.post_feedforward_layernorm",
)
_GLM_NAMES = WeightNames(
    attention_out_norm="model.layers.{}.post_self_attn_layernorm",
    mlp_out_norm="model.layers.{}.post_mlp_layernorm",
    gate_up=("model.layers.{}.mlp.gate_up_proj",),
    adjacent_pairs=True,
)

OUT_NORM = (
    Architecture(model_type="olmo", build=olmo),
    Architecture(model_type="olmo2", build=olmo2, names=_OUT_NAMES),
    Architecture(model_type="glm", build=glm, names=_GLM_NAMES),
    Architecture(model_type="glm4", build=glm4, names=_GLM_NAMES),
    Architecture(model_type="exaone4", build=exaone4, names=_OUT_NAMES),
)
