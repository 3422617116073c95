"""Mixtures of experts against the reference."""

from __future__ import annotations

import pytest
import torch

from tests.backends.triton.support import assert_close, random
from tgi_core.contract.experts import ExpertWeights, Routed
from tgi_core.reference import ReferenceKernels
from tgi_triton import TritonKernels
from tgi_triton.experts import sort_pairs

REFERENCE = ReferenceKernels()


def make_experts(
    generator: torch.Generator, count: int, hidden: int, inner: int, dtype: torch.dtype, *, bias: bool
) -> tuple[torch.Tensor | None, ...]:
    gate_up = random(generator, count, 2 * inner, hidden, dtype=dtype) * hidden**-0.5
    down = random(generator, count, hidden, inner, dtype=dtype) * inner**-0.5
    biases = [random(generator, count, size, dtype=dtype) * 0.2 for size in (2 * inner, hidden)]
    return (gate_up, biases[0] if bias else None, down, biases[1] if bias else None)


def pack(kernels: ReferenceKernels, parts: tuple[torch.Tensor | None, ...]) -> ExpertWeights:
    gate_up, up_bias, down, down_bias = parts
    assert gate_up is not None
    assert down is not None
    return ExpertWeights(kernels.pack_experts(gate_up), up_bias, kernels.pack_experts(down), down_bias)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "swiglu_clamped"])
@pytest.mark.parametrize("sizes", [(1, 4, 2), (7, 5, 3), (90, 3, 2)])
def test_experts(kernels: TritonKernels, dtype: torch.dtype, sizes: tuple[int, int, int], activation: str) -> None:
    tokens, count, chosen = sizes
    generator = torch.Generator().manual_seed(0)
    parts = make_experts(generator, count, 70, 40, dtype, bias=activation != "silu")
    x_TE = random(generator, tokens, 70, dtype=dtype)
    experts_TR = torch.rand(tokens, count, generator=generator).topk(chosen, dim=-1).indices
    routed = Routed(torch.rand(tokens, chosen, generator=generator), experts_TR)
    actual = kernels.experts(x_TE, pack(kernels, parts), routed, activation)
    assert actual.dtype is dtype
    assert_close(actual, REFERENCE.experts(x_TE, pack(REFERENCE, parts), routed, activation))


def test_an_expert_may_have_all_tokens_or_none(kernels: TritonKernels) -> None:
    generator = torch.Generator().manual_seed(0)
    parts = make_experts(generator, 3, 16, 16, torch.float32, bias=False)
    x_TE = random(generator, 40, 16, dtype=torch.float32)
    for expert in range(3):
        routed = Routed(torch.ones(40, 1), torch.full((40, 1), expert))
        actual = kernels.experts(x_TE, pack(kernels, parts), routed, "silu")
        assert_close(actual, REFERENCE.experts(x_TE, pack(REFERENCE, parts), routed, "silu"))


def test_no_tokens(kernels: TritonKernels) -> None:
    parts = make_experts(torch.Generator(), 3, 16, 16, torch.float32, bias=False)
    routed = Routed(torch.zeros(0, 2), torch.zeros(0, 2, dtype=torch.int64))
    assert kernels.experts(torch.zeros(0, 16), pack(kernels, parts), routed, "silu").shape == (0, 16)


@pytest.mark.parametrize(("tokens", "count", "chosen"), [(1, 8, 2), (33, 2, 1), (200, 3, 3), (17, 128, 8)])
def test_the_grid_is_enough_for_any_choice(tokens: int, count: int, chosen: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        experts_TR = torch.rand(tokens, count, generator=generator).topk(chosen, dim=-1).indices
        found = sort_pairs(experts_TR, count)
        assert int(found.tile_ends_X[-1]) <= found.tiles
        assert experts_TR.flatten()[found.order_Y].tolist() == sorted(experts_TR.flatten().tolist())
