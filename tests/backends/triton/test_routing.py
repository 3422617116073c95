"""Routing of tokens to experts against the reference."""

from __future__ import annotations

import pytest
import torch

from tests.backends.triton.support import assert_close
from tgi_core.contract.experts import Routed, RoutingSpec, Scoring
from tgi_core.reference import experts as reference
from tgi_triton import TritonKernels, routing

SPECS = [
    RoutingSpec(top_k=3),
    RoutingSpec(top_k=8, renormalize=True, scale=2.5),
    RoutingSpec(top_k=2, scoring=Scoring.SOFTMAX_CHOSEN, scale=0.5),
    RoutingSpec(top_k=5, scoring=Scoring.SIGMOID),
    RoutingSpec(top_k=4, scoring=Scoring.SIGMOID, renormalize=True, scale=1.5),
    RoutingSpec(top_k=1, scoring=Scoring.SIGMOID_CHOSEN),
]


def route(logits_TX: torch.Tensor, spec: RoutingSpec, bias_X: torch.Tensor | None) -> Routed:
    assert routing.routes(spec, logits_TX.shape[1])
    return routing.route(logits_TX, spec, bias_X, dependent=False)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.scoring.name.lower()}, {spec.top_k}")
@pytest.mark.parametrize(("tokens", "count"), [(1, 128), (19, 10)])
def test_routing(spec: RoutingSpec, tokens: int, count: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    # Far enough apart in any type that the choice is never one among equals.
    logits_TX = torch.rand(tokens, count, generator=generator).argsort(dim=-1).to(torch.bfloat16) / 8 - 3
    bias_X = torch.rand(count, generator=generator) / 4 if bias else None
    actual = route(logits_TX, spec, bias_X)
    expected = reference.route(logits_TX, spec, bias_X)
    assert actual.experts_TR.dtype is expected.experts_TR.dtype
    assert actual.experts_TR.tolist() == expected.experts_TR.tolist()
    assert_close(actual.weights_TR, expected.weights_TR)


def test_programs_of_many_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    logits_TX = torch.rand(300, 12, generator=generator)
    actual = route(logits_TX, SPECS[0], None)
    expected = reference.route(logits_TX, SPECS[0], None)
    assert actual.experts_TR.tolist() == expected.experts_TR.tolist()
    assert_close(actual.weights_TR, expected.weights_TR)


def test_of_equal_scores_the_first_expert_is_chosen() -> None:
    logits_TX = torch.tensor([[0.0, 2.0, 1.0, 2.0, 2.0], [-1.0, -1.0, -1.0, -1.0, -1.0]])
    assert route(logits_TX, RoutingSpec(top_k=3), None).experts_TR.tolist() == [[1, 3, 4], [0, 1, 2]]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's arithmetic is numpy's
def test_each_token_has_different_experts_whatever_its_logits_are() -> None:
    """What is no number may come from a broken model; it must not become the address of a weight."""
    logits_TX = torch.tensor([[float("nan")] * 5, [float("-inf")] * 5, [float("inf")] * 5, [0, float("nan"), 1, 2, 3]])
    experts_TR = route(logits_TX, RoutingSpec(top_k=5), None).experts_TR
    assert experts_TR.sort(dim=-1).values.tolist() == [[0, 1, 2, 3, 4]] * 4


def test_scores_of_a_sigmoid_can_all_be_zero() -> None:
    spec = RoutingSpec(top_k=2, scoring=Scoring.SIGMOID, renormalize=True)
    assert route(torch.full((1, 4), -88.0), spec, None).weights_TR.max() < 1e-10


def test_groups_and_the_sparse_mixer_are_left_to_the_reference(kernels: TritonKernels) -> None:
    generator = torch.Generator().manual_seed(0)
    logits_TX = torch.rand(5, 16, generator=generator)
    for spec in (
        RoutingSpec(top_k=3, scoring=Scoring.SIGMOID, num_groups=4, top_groups=2),
        RoutingSpec(top_k=2, scoring=Scoring.SPARSE_MIXER, closeness=0.2),
    ):
        assert not routing.routes(spec, 16)
        expected = reference.route(logits_TX, spec, None)
        assert kernels.route(logits_TX, spec, None).experts_TR.tolist() == expected.experts_TR.tolist()


def test_no_tokens(kernels: TritonKernels) -> None:
    assert kernels.route(torch.zeros(0, 16), RoutingSpec(top_k=2), None).experts_TR.shape == (0, 2)
