"""Qwen 3 Next and 3.5: gated delta nets in most layers, attention whose output has a gate in the others."""

from __future__ import annotations

from msgspec.structs import replace

from tgi_core.contract.states import DeltaRuleSpec
from tgi_core.models.families.base import base
from tgi_core.models.families.experts import read_routing, sparse_layers, with_experts
from tgi_core.models.family import Architecture
from tgi_core.models.hf_config import FULL, HFConfig
from tgi_core.models.names import DeltaNetNames, ExpertNames, WeightNames
from tgi_core.models.spec import ArchitectureSpec, DeltaNetSpec, LayerSpec, QKNorm

_LINEAR = "linear_attention"


def qwen3_next(config: HFConfig) -> ArchitectureSpec:
    spec = _base(config)
    return _with_experts(config, spec, top_k=10, renormalize=config.get("norm_topk_prob", bool, True))


def qwen3_5_text(config: HFConfig) -> ArchitectureSpec:
    config.refuse_if_set("num_experts")
    return _base(config)


def qwen3_5_moe_text(config: HFConfig) -> ArchitectureSpec:
    inner = config.size("moe_intermediate_size", 512)
    # Every layer has experts, so there is no size of a dense MLP.
    spec = _base(config.with_values(intermediate_size=inner))
    return _with_experts(config, spec, top_k=8, renormalize=True)


def qwen3_5(config: HFConfig) -> ArchitectureSpec:
    return qwen3_5_text(_text(config))


def qwen3_5_moe(config: HFConfig) -> ArchitectureSpec:
    return qwen3_5_moe_text(_text(config))


def _text(config: HFConfig) -> HFConfig:
    """The text model's part; whether the head is tied may stand beside it."""
    text, key = config.section("text_config"), "tie_word_embeddings"
    return text.with_values(**{key: config.get(key, bool, text.get(key, bool, False))})


def _base(config: HFConfig) -> ArchitectureSpec:
    spec = base(config, head_dim=256, partial_rotary=0.25, experts=True)
    bias = config.get("attention_bias", bool, False)
    return replace(
        spec,
        layers=_layers(config, len(spec.layers)),
        norm_offset=1.0,
        qk_norm=QKNorm.HEAD,
        qkv_bias=bias,
        o_bias=bias,
        output_gate=config.get("attn_output_gate", bool, True),
        delta_net=_delta_net(config),
    )


def _layers(config: HFConfig, num_layers: int) -> tuple[LayerSpec, ...]:
    interval = config.size("full_attention_interval", 4)
    kinds = [FULL if (layer + 1) % interval == 0 else _LINEAR for layer in range(num_layers)]
    kinds = config.layer_types(kinds, known=(FULL, _LINEAR))
    return tuple(LayerSpec(None, 0) if kind == FULL else LayerSpec(None, None, has_delta_net=True) for kind in kinds)


def _delta_net(config: HFConfig) -> DeltaNetSpec:
    key_heads, heads = config.size("linear_num_key_heads", 16), config.size("linear_num_value_heads", 32)
    if heads % key_heads:
        raise config.refuse("linear_num_key_heads", f"it does not divide the {heads} value heads")
    taps = config.size("linear_conv_kernel_dim", 4)
    if taps < 2:
        raise config.unsupported("linear_conv_kernel_dim", "a convolution has two taps or more")
    rule = DeltaRuleSpec(
        num_heads=heads,
        num_key_heads=key_heads,
        key_dim=config.size("linear_key_head_dim", 128),
        value_dim=config.size("linear_value_head_dim", 128),
    )
    return DeltaNetSpec(rule=rule, taps=taps)


def _with_experts(config: HFConfig, spec: ArchitectureSpec, *, top_k: int, renormalize: bool) -> ArchitectureSpec:
    routing = read_routing(config, top_k=top_k, renormalize=renormalize)
    inner = config.size("moe_intermediate_size", 512)
    spec = with_experts(config, spec, routing, "num_experts", inner, sparse=sparse_layers(config, spec))
    assert spec.experts is not None
    shared_size = config.size("shared_expert_intermediate_size", 512)
    return replace(spec, experts=replace(spec.experts, shared_size=shared_size, shared_gate=True))


_NEXT_NAMES = WeightNames(
    delta_net=DeltaNetNames(
        inputs=("model.layers.{}.linear_attn.in_proj_qkvz", "model.layers.{}.linear_attn.in_proj_ba"),
        by_key_head=True,
    )
)
# Releases have the experts of a layer in one tensor, checkpoints that transformers has saved each by itself.
_MOE_NAMES = WeightNames(
    experts=ExpertNames(stacked=("model.layers.{}.mlp.experts.gate_up_proj", "model.layers.{}.mlp.experts.down_proj"))
)
_RENAMES = (("model.language_model.", "model."),)
# Tokens ahead are not predicted, and pictures not seen.
_IGNORED = ("mtp.", "model.visual.")

DELTA = (
    Architecture(model_type="qwen3_next", build=qwen3_next, names=_NEXT_NAMES, ignored=_IGNORED),
    Architecture(model_type="qwen3_5_text", build=qwen3_5_text, renames=_RENAMES, ignored=_IGNORED),
    Architecture(model_type="qwen3_5", build=qwen3_5, renames=_RENAMES, ignored=_IGNORED),
    Architecture(
        model_type="qwen3_5_moe_text", build=qwen3_5_moe_text, names=_MOE_NAMES, renames=_RENAMES, ignored=_IGNORED
    ),
    Architecture(model_type="qwen3_5_moe", build=qwen3_5_moe, names=_MOE_NAMES, renames=_RENAMES, ignored=_IGNORED),
)
