"""Slices of weights, computed with by ranks that wait for each other, give the whole model's logits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support.other_models import VOCAB, make_other
from tgi_core.errors import StartupError
from tgi_core.models.fallback.tensor_parallel import Cut, Join, TensorParallelPlan


class Ranks:
    """Threads that exchange tensors in lockstep."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._given: list[Tensor] = [torch.empty(0)] * world
        self._barrier = threading.Barrier(world, timeout=30)

    def join(self, output: Tensor, rank: int, how: Join) -> Tensor:
        self._given[rank] = output
        self._barrier.wait()
        joined = sum(self._given[1:], self._given[0]) if how is Join.SUM else torch.cat(self._given, dim=-1)
        self._barrier.wait()
        return joined


def make_rank(model: Any, plan: TensorParallelPlan, ranks: Ranks, rank: int) -> Any:
    """The model with one rank's slices, which joins outputs with the other ranks."""
    with torch.device("cpu"):
        part = AutoModelForCausalLM.from_config(model.config, attn_implementation="eager").float().eval()
    part.load_state_dict(model.state_dict())
    sliced = {name: plan.slice(name, weight, rank) for name, weight in part.named_parameters(remove_duplicate=False)}
    for name, weight in sliced.items():
        module, _, kind = name.rpartition(".")
        setattr(part.get_submodule(module), kind, nn.Parameter(weight.contiguous(), requires_grad=False))
    for name, module in part.named_modules():
        role = plan.role(name)
        if role.cut is Cut.VOCABULARY:
            module.forward = partial(look_up, module.weight, rank * VOCAB // ranks.world)
        if role.splits_input:
            module.register_forward_pre_hook(lambda _, given: (given[0].chunk(ranks.world, dim=-1)[rank],))
        if role.join is not Join.NONE:
            module.register_forward_hook(lambda _, __, output, how=role.join: join_output(output, ranks, rank, how))
    return part


def join_output(output: Any, ranks: Ranks, rank: int, how: Join) -> Any:
    if isinstance(output, tuple):
        return (ranks.join(output[0], rank, how), *output[1:])
    return ranks.join(output, rank, how)


def look_up(weight_VE: Tensor, first: int, ids: Tensor) -> Tensor:
    there = (ids >= first) & (ids < first + len(weight_VE))
    return weight_VE[(ids - first).clamp(0, len(weight_VE) - 1)] * there[..., None]


@pytest.mark.parametrize(
    ("model_type", "world", "changes"),
    [
        case
        for case in (
            ("arcee", 2, {"mlp_bias": True, "attention_bias": True}),
            ("arcee", 4, {"num_key_value_heads": 4}),
            ("helium", 2, {}),
            ("gpt_neox", 4, {"num_key_value_heads": 4}),
            ("olmo3", 4, {}),
            ("apertus", 2, {"tie_word_embeddings": True}),
            ("mixtral", 2, {"num_local_experts": 4}),
        )
        if case[0] in transformers.CONFIG_MAPPING
    ],
)
def test_slices_give_the_whole_models_logits(
    model_type: str, world: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = make_other(model_type, tmp_path, **changes)
    plan, ranks = TensorParallelPlan(model, world), Ranks(world)
    parts = [make_rank(model, plan, ranks, rank) for rank in range(world)]
    ids_1T = torch.arange(12)[None] * 13 % VOCAB

    def run(part: Any) -> Tensor:
        with torch.inference_mode():
            return part(ids_1T, use_cache=False).logits

    with ThreadPoolExecutor(world) as pool:
        logits = list(pool.map(run, parts))
    expected_1TV = run(model)
    for found_1TV in logits:
        torch.testing.assert_close(found_1TV, expected_1TV, rtol=1e-4, atol=1e-4)
    sizes = [sum(weight.numel() for weight in part.parameters()) for part in (model, parts[0])]
    assert sizes[1] < 0.6 * sizes[0]


def make_plan(model_type: str, world: int, plan: dict[str, str] | None = None, **changes: Any) -> TensorParallelPlan:
    config = AutoConfig.for_model(model_type, hidden_size=64, num_hidden_layers=1, vocab_size=VOCAB, **changes)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    if plan is not None:
        model._tp_plan = plan
        model.config.base_model_tp_plan = None
    return TensorParallelPlan(model, world)


def test_what_cannot_be_divided_is_refused_by_name() -> None:
    with pytest.raises(StartupError, match=r"its 2 `num_key_value_heads` cannot be divided among 4 devices"):
        make_plan("arcee", 4, num_attention_heads=4, num_key_value_heads=2)
    plan = make_plan("arcee", 2, num_attention_heads=4, num_key_value_heads=2)
    with pytest.raises(StartupError, match=r"mlp\.up_proj\.weight of shape \[7, 64\] cannot be divided among 2"):
        plan.slice("model.layers.0.mlp.up_proj.weight", torch.zeros(7, 64), 0)


def test_plans_that_are_not_known_are_refused_by_name() -> None:
    with pytest.raises(StartupError, match=r"`BioGptForCausalLM` has no plan for several devices"):
        make_plan("biogpt", 2, num_attention_heads=4)
    with pytest.raises(StartupError, match=r"`sequence_parallel` for model\.norm"):
        make_plan("arcee", 2, {"model.norm": "sequence_parallel"}, num_attention_heads=4)
