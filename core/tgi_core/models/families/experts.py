"""What mixtures of experts share."""

from __future__ import annotations

from msgspec.structs import replace

from tgi_core.contract.experts import RoutingSpec, Scoring
from tgi_core.models.hf_config import HFConfig
from tgi_core.models.spec import ArchitectureSpec, ExpertsSpec


def read_routing(
    config: HFConfig,
    *,
    top_k: int,
    scoring: Scoring = Scoring.SOFTMAX,
    renormalize: bool = False,
    scale: float = 1.0,
    num_groups: int = 1,
    top_groups: int = 1,
    group_scores: int = 2,
    closeness: float = 0.0,
) -> RoutingSpec:
    """``top_k`` is the number of experts a token where the configuration names none."""
    return RoutingSpec(
        top_k=config.size("num_experts_per_tok", top_k),
        scoring=scoring,
        renormalize=renormalize,
        scale=scale,
        num_groups=num_groups,
        top_groups=top_groups,
        group_scores=group_scores,
        closeness=closeness,
    )


def with_experts(
    config: HFConfig,
    spec: ArchitectureSpec,
    routing: RoutingSpec,
    key: str,
    inner: int | None = None,
    *,
    sparse: list[bool] | None = None,
) -> ArchitectureSpec:
    """``spec`` with experts, as many as ``key`` says, in the ``sparse`` layers or in all."""
    count = config.size(key)
    if count % routing.num_groups or routing.top_groups > routing.num_groups:
        raise config.refuse(key, f"{routing.num_groups} groups, of which {routing.top_groups} are chosen")
    if routing.num_groups > 1 and count // routing.num_groups < routing.group_scores:
        raise config.refuse(key, f"{routing.num_groups} groups of less than {routing.group_scores}")
    if routing.top_k > count // routing.num_groups * routing.top_groups:
        raise config.refuse(key, f"{routing.top_k} experts are chosen for a token")
    experts = ExpertsSpec(num_experts=count, intermediate_size=inner or spec.intermediate_size, routing=routing)
    flags = sparse or [True] * len(spec.layers)
    layers = tuple(replace(layer, has_experts=flag) for layer, flag in zip(spec.layers, flags, strict=True))
    return replace(spec, layers=layers, experts=experts)


def sparse_layers(config: HFConfig, spec: ArchitectureSpec) -> list[bool]:
    """Every ``decoder_sparse_step``-th layer, without those that are named dense."""
    step, dense = config.size("decoder_sparse_step", 1), config.get("mlp_only_layers", list[int], [])
    return [(layer + 1) % step == 0 and layer not in dense for layer in range(len(spec.layers))]
