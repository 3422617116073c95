"""Llama 4, text only: chunks of attention by turns with layers that see all and rotate nothing, and experts."""

from __future__ import annotations

from msgspec.structs import replace

from tgi_core.contract.experts import Scoring
from tgi_core.models.families.base import base
from tgi_core.models.families.experts import read_routing, with_experts
from tgi_core.models.family import Architecture
from tgi_core.models.hf_config import FULL, LONGEST_CONTEXT, HFConfig
from tgi_core.models.names import ExpertLayout, ExpertNames, WeightNames
from tgi_core.models.ropes import LongRopeScaling, YarnScaling
from tgi_core.models.spec import ArchitectureSpec, LayerSpec, QKNorm, QueryTemperature
from tgi_core.text_defaults import TEXT_DEFAULTS

_CHUNKED = "chunked_attention"


def llama4_text(config: HFConfig) -> ArchitectureSpec:
    spec = base(config, theta=500_000.0, eps=1e-5, experts=True)
    bias = config.get("attention_bias", bool, False)
    inner = spec.intermediate_size
    spec = replace(
        spec,
        intermediate_size=config.size("intermediate_size_mlp"),
        layers=_layers(config, len(spec.layers)),
        chunked=True,
        # Its norm stands after the rotation, and might as well before: without a weight it only scales a head, and a
        # rotation leaves the length of one as it is.
        qk_norm=QKNorm.HEAD_PLAIN if config.get("use_qk_norm", bool, True) else None,
        query_temperature=_temperature(config),
        qkv_bias=bias,
        o_bias=bias,
    )
    if spec.qk_norm is not None and isinstance(spec.ropes[0].scaling, YarnScaling | LongRopeScaling):
        raise config.unsupported("use_qk_norm", "with a rope scaling that changes the length of queries and keys")
    routing = read_routing(config, top_k=1, scoring=Scoring.SIGMOID_CHOSEN)
    if routing.top_k != 1:
        raise config.unsupported("num_experts_per_tok", "its router chooses one")
    step, count = config.size("interleave_moe_layer_step", 1), len(spec.layers)
    named = config.get("moe_layers", list[int], list(range(step - 1, count, step)))
    sparse = [layer in named for layer in range(count)]
    spec = with_experts(config, spec, routing, "num_local_experts", inner, sparse=sparse)
    assert spec.experts is not None
    return replace(spec, experts=replace(spec.experts, shared_size=inner, weighs_inputs=True))


def llama4(config: HFConfig) -> ArchitectureSpec:
    return llama4_text(config.section("text_config", TEXT_DEFAULTS["llama4"]))


def _layers(config: HFConfig, count: int) -> tuple[LayerSpec, ...]:
    interval = config.size("no_rope_layer_interval", 4)
    usual = [int((layer + 1) % interval != 0) for layer in range(count)]
    # Despite its name it says which layers rotate.
    rotates = config.get("no_rope_layers", list[int], []) or usual
    if config.has("layer_types"):
        types = config.get("layer_types", list[str])
        chunk = config.size("attention_chunk_size", 8192, most=LONGEST_CONTEXT)
    else:
        types = [_CHUNKED if rotate else FULL for rotate in rotates]
        chunk = config.size("attention_chunk_size", most=LONGEST_CONTEXT)
    for key, entries in (("no_rope_layers", rotates), ("layer_types", types)):
        if len(entries) != count:
            raise config.refuse(key, f"{len(entries)} entries for {count} layers")
    for name in types:
        if name not in (FULL, _CHUNKED):
            raise config.unsupported("layer_types", f"unknown type `{name}`")
    return tuple(
        LayerSpec(chunk if name == _CHUNKED else None, 0 if rotate else None)
        for name, rotate in zip(types, rotates, strict=True)
    )


def _temperature(config: HFConfig) -> QueryTemperature | None:
    # The first configurations have a number here.
    if not config.get("attn_temperature_tuning", object, True):
        return None
    return QueryTemperature(weight=config.positive("attn_scale", 0.1), interval=config.positive("floor_scale", 8192.0))


_LLAMA4_TEXT = Architecture(
    model_type="llama4_text",
    build=llama4_text,
    names=WeightNames(
        gate_up=("model.layers.{}.feed_forward.gate_proj", "model.layers.{}.feed_forward.up_proj"),
        down="model.layers.{}.feed_forward.down_proj",
        adjacent_pairs=True,
        experts=ExpertNames(
            router="model.layers.{}.feed_forward.router",
            gate_up=("model.layers.{}.feed_forward.experts.gate_up_proj",),
            down="model.layers.{}.feed_forward.experts.down_proj",
            shared_gate_up=(
                "model.layers.{}.feed_forward.shared_expert.gate_proj",
                "model.layers.{}.feed_forward.shared_expert.up_proj",
            ),
            shared_down="model.layers.{}.feed_forward.shared_expert.down_proj",
            layout=ExpertLayout.TRANSPOSED,
        ),
    ),
)

LLAMA4 = (
    _LLAMA4_TEXT,
    replace(
        _LLAMA4_TEXT,
        model_type="llama4",
        build=llama4,
        renames=(("language_model.model.", "model."), ("language_model.lm_head.", "lm_head.")),
        ignored=("vision_model.", "multi_modal_projector."),
    ),
)
