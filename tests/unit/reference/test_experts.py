"""Routing of tokens to experts and the experts themselves, token by token."""

from __future__ import annotations

import math

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from tgi_core.contract import Kernels
from tgi_core.contract.experts import ExpertWeights, Routed, RoutingSpec, Scoring
from tgi_core.reference import ReferenceKernels
from tgi_cpu.kernels import CpuKernels

both_kernels = pytest.mark.parametrize("kernels", [ReferenceKernels(), CpuKernels()], ids=["reference", "cpu"])
LOGITS = [[0.0, 2.0, 1.0, -1.0], [3.0, 0.0, 0.0, 3.5]]


def route(spec: RoutingSpec, bias: list[float] | None = None) -> list[dict[int, float]]:
    """The weights of each token's experts, by expert."""
    bias_X = None if bias is None else torch.tensor(bias)
    routed = ReferenceKernels().route(torch.tensor(LOGITS), spec, bias_X)
    assert routed.weights_TR.dtype is torch.float32
    assert routed.experts_TR.dtype is torch.int64
    return [
        dict(zip(experts, weights, strict=True))
        for experts, weights in zip(routed.experts_TR.tolist(), routed.weights_TR.tolist(), strict=True)
    ]


def softmax(values: list[float]) -> list[float]:
    total = sum(map(math.exp, values))
    return [math.exp(value) / total for value in values]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_softmax_before_the_choice() -> None:
    first, second = route(RoutingSpec(top_k=2))
    assert first == pytest.approx({1: softmax(LOGITS[0])[1], 2: softmax(LOGITS[0])[2]})
    assert second == pytest.approx({0: softmax(LOGITS[1])[0], 3: softmax(LOGITS[1])[3]})


def test_renormalised_is_softmax_after_the_choice() -> None:
    expected = dict(zip((1, 2), softmax([2.0, 1.0]), strict=True))
    assert route(RoutingSpec(top_k=2, renormalize=True))[0] == pytest.approx(expected)
    assert route(RoutingSpec(top_k=2, scoring=Scoring.SOFTMAX_CHOSEN))[0] == pytest.approx(expected)


def test_sigmoid_with_a_bias_for_the_choice_alone() -> None:
    spec = RoutingSpec(top_k=2, scoring=Scoring.SIGMOID, scale=1.5)
    assert route(spec)[0] == pytest.approx({1: 1.5 * sigmoid(2), 2: 1.5 * sigmoid(1)})
    assert route(spec, [0.0, 0.0, 0.0, 5.0])[0] == pytest.approx({1: 1.5 * sigmoid(2), 3: 1.5 * sigmoid(-1)})


def test_only_the_best_groups_can_be_chosen() -> None:
    spec = RoutingSpec(top_k=2, num_groups=2, top_groups=1)
    # Experts 0 and 1 together against 2 and 3; without groups the first token would choose 1 and 2.
    assert [set(chosen) for chosen in route(spec)] == [{0, 1}, {2, 3}]


def test_groups_by_their_best_expert() -> None:
    # By two experts the first token chooses the group of 0 and 1, by the best of each as well; the second does not:
    # its best expert is 3, and 0 and 1 are together worth more than 2 and 3.
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0], [3.0, 3.2, -9.0, 3.5]])
    spec = RoutingSpec(top_k=2, num_groups=2, top_groups=1, group_scores=1)
    assert ReferenceKernels().route(logits, spec, None).experts_TR.sort().values.tolist() == [[0, 1], [2, 3]]
    by_two = ReferenceKernels().route(logits, replace(spec, group_scores=2), None)
    assert by_two.experts_TR.sort().values.tolist() == [[0, 1], [0, 1]]


def test_sigmoid_after_the_choice() -> None:
    spec = RoutingSpec(top_k=1, scoring=Scoring.SIGMOID_CHOSEN, scale=1.5)
    assert [pytest.approx(chosen) for chosen in route(spec)] == [{1: 1.5 * sigmoid(2)}, {3: 1.5 * sigmoid(3.5)}]
    # Sigmoids of such logits are all 1: only the logits tell which is best.
    routed = ReferenceKernels().route(torch.tensor([[30.0, 50.0, 40.0]]), spec, None)
    assert routed.experts_TR.tolist() == [[1]]


def test_sparse_mixer() -> None:
    """The first expert shares with those close to it, the second with those close to it that are left."""
    first, second = route(RoutingSpec(top_k=2, scoring=Scoring.SPARSE_MIXER, closeness=0.6))
    assert first == pytest.approx({1: softmax([2.0, 1.0])[0], 2: 1.0})
    assert second == pytest.approx({3: softmax([3.5, 3.0])[0], 0: 1.0})


def random_experts(kernels: Kernels, count: int, *, bias: bool) -> tuple[ExpertWeights, list[Tensor]]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    gate_up, down = random(count, 12, 8), random(count, 8, 6)
    biases = (random(count, 12), random(count, 8)) if bias else (None, None)
    weights = ExpertWeights(kernels.pack_experts(gate_up), biases[0], kernels.pack_experts(down), biases[1])
    return weights, [gate_up, down, *(torch.zeros(1, 1) if each is None else each for each in biases)]


@both_kernels
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tokens", [1, 7])
def test_a_token_gets_the_weighted_sum_of_its_experts(kernels: Kernels, bias: bool, tokens: int) -> None:
    weights, (gate_up, down, up_bias, down_bias) = random_experts(kernels, 4, bias=bias)
    generator = torch.Generator().manual_seed(1)
    x_TE = torch.randn(tokens, 8, generator=generator)
    # Expert 2 is nobody's.
    experts_TR = torch.tensor([0, 1, 3])[torch.randint(3, (tokens, 2), generator=generator)]
    shares_TR = torch.rand(tokens, 2, generator=generator)
    expected = []
    for x, experts, shares in zip(x_TE, experts_TR.tolist(), shares_TR.tolist(), strict=True):
        total = torch.zeros(8)
        for expert, share in zip(experts, shares, strict=True):
            gate, up = (gate_up[expert] @ x + (up_bias[expert] if bias else 0)).chunk(2)
            inner = gate / (1 + torch.exp(-gate)) * up
            total += share * (down[expert] @ inner + (down_bias[expert] if bias else 0))
        expected.append(total)
    output_TE = kernels.experts(x_TE, weights, Routed(shares_TR, experts_TR), "silu")
    torch.testing.assert_close(output_TE, torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_clamped_swiglu() -> None:
    x = torch.tensor([[9.0, -9.0, 1.0, 9.0, -9.0, 0.5]])
    result = ReferenceKernels().activation_mul(x, "swiglu_clamped")[0].tolist()
    gates, ups = (7.0, -9.0, 1.0), (7.0, -7.0, 0.5)
    expected = [gate * sigmoid(1.702 * gate) * (up + 1) for gate, up in zip(gates, ups, strict=True)]
    assert result == pytest.approx(expected)
