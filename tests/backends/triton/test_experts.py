"""Mixtures of experts against the reference."""

from __future__ import annotations

import pytest
import torch

from tests.backends.triton.support import DESCRIPTORS, assert_close, random
from tgi_core.contract.experts import ExpertWeights, Routed
from tgi_core.reference import ReferenceKernels
from tgi_triton import TritonKernels
from tgi_triton.expert_order import sort_pairs
from tgi_triton.expert_tiles import FLOAT32_TILES, HOPPER_TILES, PORTABLE_TILES, ExpertTiles, choose_tiles

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


@pytest.mark.parametrize("activation", ["silu", "swiglu_clamped"])
@pytest.mark.parametrize("sizes", [(1, 8, 2), (7, 5, 3), (70, 3, 2)])
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


@pytest.mark.parametrize("tokens", [7, 40])
def test_experts_whose_weights_come_by_descriptors(tokens: int) -> None:
    kernels = TritonKernels(torch.device("cpu"), DESCRIPTORS)
    generator = torch.Generator().manual_seed(0)
    parts = make_experts(generator, 3, 72, 40, torch.float16, bias=True)
    x_TE = random(generator, tokens, 72, dtype=torch.float16)
    experts_TR = torch.rand(tokens, 3, generator=generator).topk(2, dim=-1).indices
    routed = Routed(torch.rand(tokens, 2, generator=generator), experts_TR)
    actual = kernels.experts(x_TE, pack(kernels, parts), routed, "silu")
    assert_close(actual, REFERENCE.experts(x_TE, pack(REFERENCE, parts), routed, "silu"))


SORTS = [(1, 8, 2, 16), (33, 2, 1, 32), (43, 3, 3, 16), (200, 3, 3, 64), (300, 100, 8, 16)]


@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize(("tokens", "count", "chosen", "rows"), SORTS)
def test_pairs_are_sorted(tokens: int, count: int, chosen: int, rows: int, gather: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        experts_TR = torch.rand(tokens, count, generator=generator).topk(chosen, dim=-1).indices
        found = sort_pairs(experts_TR, count, rows, gather=gather)
        assert found.order_Y.tolist() == experts_TR.flatten().argsort(stable=True).tolist()
        counts_X = experts_TR.flatten().bincount(minlength=count)
        tile_ends_X = ((counts_X + rows - 1) // rows).cumsum(0)
        ends_X = counts_X.cumsum(0)
        assert found.ends_3X.tolist() == torch.stack([ends_X - counts_X, ends_X, tile_ends_X]).tolist()
        assert int(tile_ends_X[-1]) <= found.tiles


@pytest.mark.parametrize("table", [PORTABLE_TILES, FLOAT32_TILES, HOPPER_TILES])
def test_a_table_has_tiles_for_any_number_of_pairs(table: tuple[ExpertTiles, ...]) -> None:
    rows = [choose_tiles(table, pairs, 128).rows for pairs in (0, 32, 33, 1 << 11, 1 << 24)]
    assert rows == sorted(rows)
    assert rows[:2] == [1, 1]
    assert rows[2] > 1
