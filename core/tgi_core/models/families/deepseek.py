"""DeepSeek 2 and 3: latent attention, routed and shared experts; and models that share their configuration."""

from __future__ import annotations

from msgspec.structs import replace

from tgi_core.contract.experts import RoutingSpec, Scoring
from tgi_core.models.families.base import base, predicting_layers
from tgi_core.models.families.experts import read_routing, with_experts
from tgi_core.models.family import Architecture
from tgi_core.models.hf_config import HFConfig, yarn_magnitude
from tgi_core.models.names import ExpertNames, WeightNames
from tgi_core.models.ropes import RopeSpec, YarnScaling
from tgi_core.models.spec import ArchitectureSpec, LatentSpec, LayerSpec

_COMPRESSED_EPS = 1e-6
"""Of the norms of compressed features; the configuration speaks of the others."""

_GREEDY, _GROUPS = "greedy", "group_limited_greedy"


def deepseek_v2(config: HFConfig) -> ArchitectureSpec:
    _expect(config, "scoring_func", "softmax")
    method = config.get("topk_method", str, _GREEDY)
    if method not in (_GREEDY, _GROUPS):
        raise config.unsupported("topk_method", f"known are {_GREEDY} and {_GROUPS}")
    spec = replace(_latent(config, adjacent_pairs=True), mlp_bias=config.get("mlp_bias", bool, False))
    if not config.has("n_routed_experts"):
        return spec
    top_k = config.size("num_experts_per_tok")
    renormalize = top_k > 1 and config.get("norm_topk_prob", bool, False)
    routing = read_routing(
        config,
        top_k=top_k,
        renormalize=renormalize,
        # The release scales only the weights that it has not divided by their sum.
        scale=1.0 if renormalize else config.positive("routed_scaling_factor", 1.0),
        num_groups=config.size("n_group") if method == _GROUPS else 1,
        top_groups=config.size("topk_group") if method == _GROUPS else 1,
        group_scores=1,
    )
    return _with_experts(config, spec, routing, dense=0, selection_bias=False)


def deepseek_v3(config: HFConfig) -> ArchitectureSpec:
    _expect(config, "scoring_func", "sigmoid")
    _expect(config, "topk_method", "noaux_tc")
    spec = _latent(config, adjacent_pairs=config.get("rope_interleave", bool, True))
    routing = read_routing(
        config,
        top_k=8,
        scoring=Scoring.SIGMOID,
        renormalize=config.get("norm_topk_prob", bool, True),
        scale=config.positive("routed_scaling_factor", 2.5),
        num_groups=config.size("n_group", 8),
        top_groups=config.size("topk_group", 4),
    )
    return _with_experts(config, spec, routing, dense=3, selection_bias=True)


def _expect(config: HFConfig, key: str, value: str) -> None:
    # Transformers' models of these types do not read the keys: they would compute something else.
    if config.get(key, str, value) != value:
        raise config.refuse(key, f"models of this type have {value}")


def _latent(config: HFConfig, *, adjacent_pairs: bool) -> ArchitectureSpec:
    """The model without its experts."""
    rank, rotated_dim = config.size("kv_lora_rank"), config.size("qk_rope_head_dim")
    unrotated_dim = config.size("qk_nope_head_dim")
    spec = base(config.with_values(head_dim=rank + rotated_dim), num_kv_heads=1, theta=None, experts=True)
    rope = config.rope(rotated_dim)
    bias = config.get("attention_bias", bool, False)
    return replace(
        spec,
        layers=(LayerSpec(None, 0),) * len(spec.layers),
        ropes=(rope,),
        attention_scale=(unrotated_dim + rotated_dim) ** -0.5 * _stretch(config, rope) ** 2,
        qkv_bias=bias,
        o_bias=bias,
        latent=LatentSpec(
            rank=rank,
            unrotated_dim=unrotated_dim,
            rotated_dim=rotated_dim,
            value_dim=config.size("v_head_dim"),
            query_rank=config.size("q_lora_rank") if config.has("q_lora_rank") else None,
            norm_eps=_COMPRESSED_EPS,
            adjacent_pairs=adjacent_pairs,
        ),
        ignored=predicting_layers(config, len(spec.layers)),
    )


def _stretch(config: HFConfig, rope: RopeSpec) -> float:
    """By how much a stretched context multiplies queries and keys, unrotated features too."""
    if not isinstance(rope.scaling, YarnScaling):
        return 1.0
    values = config.section("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    return yarn_magnitude(rope.scaling.factor, values.get("mscale_all_dim", float, 0.0))


def _with_experts(
    config: HFConfig, spec: ArchitectureSpec, routing: RoutingSpec, *, dense: int, selection_bias: bool
) -> ArchitectureSpec:
    """``dense`` is how many layers have none where the configuration does not say."""
    dense, step = config.get("first_k_dense_replace", int, dense), config.size("moe_layer_freq", 1)
    sparse = [layer >= dense and layer % step == 0 for layer in range(len(spec.layers))]
    inner = config.size("moe_intermediate_size")
    spec = with_experts(config, spec, routing, "n_routed_experts", inner, sparse=sparse)
    assert spec.experts is not None
    shared_size = config.size("n_shared_experts") * inner if config.has("n_shared_experts") else None
    return replace(spec, experts=replace(spec.experts, selection_bias=selection_bias, shared_size=shared_size))


_NAMES = WeightNames(
    experts=ExpertNames(
        shared_gate_up=(
            "model.layers.{}.mlp.shared_experts.gate_proj",
            "model.layers.{}.mlp.shared_experts.up_proj",
        ),
        shared_down="model.layers.{}.mlp.shared_experts.down_proj",
    )
)

DEEPSEEK = (
    Architecture(model_type="deepseek_v2", build=deepseek_v2, names=_NAMES),
    Architecture(model_type="deepseek_v3", build=deepseek_v3, names=_NAMES),
    Architecture(model_type="kimi_k2", build=deepseek_v3, names=_NAMES),
)
