"""Mixtures of experts."""

from __future__ import annotations

from msgspec.structs import replace

from tgi_core.contract.experts import Scoring
from tgi_core.models.families.base import base, optional, predicting_layers
from tgi_core.models.families.experts import read_routing, sparse_layers, with_experts
from tgi_core.models.families.llama import granite, mistral
from tgi_core.models.families.qwen import qwen_layers
from tgi_core.models.family import Architecture
from tgi_core.models.hf_config import FULL, SLIDING, HFConfig
from tgi_core.models.names import ExpertLayout, ExpertNames, WeightNames
from tgi_core.models.spec import ArchitectureSpec, Norm, QKNorm


def mixtral(config: HFConfig) -> ArchitectureSpec:
    routing = read_routing(config, top_k=2, renormalize=True)
    spec = mistral(config, experts=True, theta=1_000_000.0, eps=1e-5)
    return with_experts(config, spec, routing, "num_local_experts")


def phimoe(config: HFConfig) -> ArchitectureSpec:
    spec = mistral(config, experts=True, theta=1_000_000.0, eps=1e-5)
    bias = config.get("attention_bias", bool, False)
    # Scores that lie further below the best than twice the noise of the training share nothing.
    closeness = 2 * config.positive("router_jitter_noise", 0.01)
    routing = read_routing(config, top_k=2, scoring=Scoring.SPARSE_MIXER, closeness=closeness)
    if routing.top_k != 2:
        raise config.unsupported("num_experts_per_tok", "its router chooses two")
    spec = with_experts(config, spec, routing, "num_local_experts")
    return replace(
        spec,
        norm=Norm.LAYER_BIAS,
        qkv_bias=bias,
        o_bias=bias,
        head_bias=config.get("lm_head_bias", bool, False),
    )


def granitemoe(config: HFConfig) -> ArchitectureSpec:
    routing = read_routing(config, top_k=2, scoring=Scoring.SOFTMAX_CHOSEN)
    return with_experts(config, granite(config, experts=True), routing, "num_local_experts")


def qwen2_moe(config: HFConfig) -> ArchitectureSpec:
    spec = base(config, experts=True)
    spec = replace(spec, layers=qwen_layers(config, len(spec.layers)), qkv_bias=config.get("qkv_bias", bool, True))
    routing = read_routing(config, top_k=4, renormalize=config.get("norm_topk_prob", bool, False))
    inner = config.size("moe_intermediate_size")
    spec = with_experts(config, spec, routing, "num_experts", inner, sparse=sparse_layers(config, spec))
    assert spec.experts is not None
    shared_size = config.size("shared_expert_intermediate_size")
    return replace(spec, experts=replace(spec.experts, shared_size=shared_size, shared_gate=True))


def qwen3_moe(config: HFConfig) -> ArchitectureSpec:
    config = config.with_names(num_experts="num_local_experts")
    spec = base(config, head_dim=config.size("hidden_size") // config.size("num_attention_heads"), experts=True)
    bias = config.get("attention_bias", bool, False)
    windowed = config.get("use_sliding_window", bool, False) and config.has("sliding_window")
    layers = config.layers([SLIDING if windowed else FULL] * len(spec.layers))
    spec = replace(spec, layers=layers, qkv_bias=bias, o_bias=bias, qk_norm=QKNorm.HEAD)
    routing = read_routing(config, top_k=8, renormalize=config.get("norm_topk_prob", bool, False))
    inner = config.size("moe_intermediate_size")
    return with_experts(config, spec, routing, "num_experts", inner, sparse=sparse_layers(config, spec))


def olmoe(config: HFConfig) -> ArchitectureSpec:
    # It would cut queries and keys after their norms.
    config.refuse_if_set("clip_qkv")
    bias = config.get("attention_bias", bool, False)
    spec = replace(base(config, eps=1e-5, experts=True), qk_norm=QKNorm.WIDTH, qkv_bias=bias, o_bias=bias)
    routing = read_routing(config, top_k=8, renormalize=config.get("norm_topk_prob", bool, False))
    return with_experts(config, spec, routing, "num_experts")


def glm4_moe(config: HFConfig) -> ArchitectureSpec:
    spec = base(config, partial_rotary=0.5, eps=1e-5, experts=True)
    spec = replace(
        spec,
        qkv_bias=config.get("attention_bias", bool, False),
        qk_norm=QKNorm.HEAD if config.get("use_qk_norm", bool, False) else None,
        ignored=predicting_layers(config, len(spec.layers)),
    )
    routing = read_routing(
        config,
        top_k=8,
        scoring=Scoring.SIGMOID,
        renormalize=config.get("norm_topk_prob", bool, True),
        scale=config.positive("routed_scaling_factor", 1.0),
        num_groups=config.size("n_group", 1),
        top_groups=config.size("topk_group", 1),
    )
    dense = config.get("first_k_dense_replace", int, 1)
    sparse = [layer >= dense for layer in range(len(spec.layers))]
    inner = config.size("moe_intermediate_size")
    spec = with_experts(config, spec, routing, "n_routed_experts", inner, sparse=sparse)
    assert spec.experts is not None
    shared_size = config.size("n_shared_experts", 1) * inner
    return replace(spec, experts=replace(spec.experts, selection_bias=True, shared_size=shared_size))


def dbrx(config: HFConfig) -> ArchitectureSpec:
    names = {
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "max_position_embeddings": "max_seq_len",
    }
    attention, experts = config.section("attn_config", {}), config.section("ffn_config", {})
    activation = experts.section("ffn_act_fn", {"name": "silu"})
    inner = experts.size("ffn_hidden_size", 3584)
    spec = base(
        config.with_names(**names).with_values(intermediate_size=inner, hidden_act=activation.get("name", str)),
        num_kv_heads=attention.size("kv_n_heads", 1),
        theta=attention.positive("rope_theta", 10_000.0, above=1.0),
        eps=1e-5,
    )
    key = "moe_normalize_expert_weights"
    if key not in config.get("ffn_config", dict[str, object], {}):
        # Only null means that they are left.
        experts = experts.with_values(moe_normalize_expert_weights=1.0)
    if experts.has(key) and experts.positive(key) != 1:
        raise experts.unsupported(key, "weights are divided by their sum, or left")
    routing = read_routing(experts.with_names(num_experts_per_tok="moe_top_k"), top_k=1, renormalize=experts.has(key))
    spec = replace(spec, norm=Norm.LAYER, qkv_clip=optional(attention, "clip_qkv"))
    return with_experts(experts, spec, routing, "moe_num_experts", inner)


def gpt_oss(config: HFConfig) -> ArchitectureSpec:
    if not config.has("rope_scaling") and not config.has("rope_parameters"):
        config = config.with_values(rope_scaling=_GPT_OSS_SCALING)
    for key, value in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if config.positive(key, value) != value:
            raise config.unsupported(key, f"only {value} is")
    spec = base(config, head_dim=64, theta=150_000.0, eps=1e-5, experts=True)
    bias = config.get("attention_bias", bool, True)
    kinds = [FULL if layer % 2 else SLIDING for layer in range(len(spec.layers))]
    spec = replace(
        spec,
        activation="swiglu_clamped",
        layers=config.layers(config.layer_types(kinds)),
        attention_sinks=True,
        qkv_bias=bias,
        o_bias=bias,
    )
    routing = read_routing(config, top_k=4, scoring=Scoring.SOFTMAX_CHOSEN)
    spec = with_experts(config, spec, routing, "num_local_experts")
    assert spec.experts is not None
    return replace(spec, experts=replace(spec.experts, router_bias=True, expert_bias=True))


_GPT_OSS_SCALING = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}
"""What a configuration means that says nothing of it."""

_MIXTRAL_NAMES = ExpertNames(
    router="model.layers.{}.block_sparse_moe.gate",
    gate_up=(
        "model.layers.{}.block_sparse_moe.experts.{}.w1",
        "model.layers.{}.block_sparse_moe.experts.{}.w3",
    ),
    down="model.layers.{}.block_sparse_moe.experts.{}.w2",
)

MOE = (
    Architecture(model_type="mixtral", build=mixtral, names=WeightNames(experts=_MIXTRAL_NAMES)),
    Architecture(model_type="phimoe", build=phimoe, names=WeightNames(experts=_MIXTRAL_NAMES)),
    Architecture(
        model_type="granitemoe",
        build=granitemoe,
        names=WeightNames(
            experts=ExpertNames(
                router="model.layers.{}.block_sparse_moe.router.layer",
                gate_up=("model.layers.{}.block_sparse_moe.input_linear",),
                down="model.layers.{}.block_sparse_moe.output_linear",
                layout=ExpertLayout.STACKED,
            )
        ),
    ),
    Architecture(model_type="qwen2_moe", build=qwen2_moe),
    Architecture(model_type="qwen3_moe", build=qwen3_moe),
    Architecture(model_type="olmoe", build=olmoe),
    Architecture(
        model_type="glm4_moe",
        build=glm4_moe,
        names=WeightNames(
            experts=ExpertNames(
                shared_gate_up=(
                    "model.layers.{}.mlp.shared_experts.gate_proj",
                    "model.layers.{}.mlp.shared_experts.up_proj",
                ),
                shared_down="model.layers.{}.mlp.shared_experts.down_proj",
            )
        ),
    ),
    Architecture(
        model_type="dbrx",
        build=dbrx,
        names=WeightNames(
            embedding="transformer.wte",
            final_norm="transformer.norm_f",
            attention_norm="transformer.blocks.{}.norm_attn_norm.norm_1",
            qkv=("transformer.blocks.{}.norm_attn_norm.attn.Wqkv",),
            o="transformer.blocks.{}.norm_attn_norm.attn.out_proj",
            mlp_norm="transformer.blocks.{}.norm_attn_norm.norm_2",
            experts=ExpertNames(
                router="transformer.blocks.{}.ffn.router.layer",
                gate_up=("transformer.blocks.{}.ffn.experts.mlp.w1", "transformer.blocks.{}.ffn.experts.mlp.v1"),
                down="transformer.blocks.{}.ffn.experts.mlp.w2",
                layout=ExpertLayout.FLAT,
            ),
        ),
    ),
    Architecture(
        model_type="gpt_oss",
        build=gpt_oss,
        names=WeightNames(
            experts=ExpertNames(
                router="model.layers.{}.mlp.router",
                gate_up=("model.layers.{}.mlp.experts.gate_up_proj",),
                down="model.layers.{}.mlp.experts.down_proj",
                layout=ExpertLayout.INTERLEAVED,
            )
        ),
    ),
)
