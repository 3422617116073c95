"""The counter-based noise: the same integers as a reference in plain Python, and Gumbel distributed."""

from __future__ import annotations

import math

import pytest
import torch

from tgi_core.reference.noise import gumbel_noise, noise_bits

MASK = 0xFFFFFFFF


def mix(x: int, key: int = 0) -> int:
    """lowbias32 with an optional key between its rounds, on unsigned Python integers."""
    x ^= x >> 16
    x = x * 0x7FEB352D & MASK
    x ^= x >> 15
    x ^= key
    x = x * 0x846CA68B & MASK
    return x ^ (x >> 16)


def bits(seed: int, choice: int, position: int, token: int) -> int:
    keys = []
    for key in (0x243F6A88, 0x85A308D3):
        for word in (seed & MASK, seed >> 32, choice, position):
            key = mix(key ^ word)
        keys.append(key)
    return mix((token * 0x9E3779B9 & MASK) ^ keys[0], keys[1])


def signed(seed: int) -> int:
    return seed - (1 << 64) if seed >= 1 << 63 else seed


FIRST_CHOICE = torch.zeros(1, dtype=torch.int32)
SEEDS = [0, 1, 42, 0xFFFFFFFF, 1 << 32, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF, 0x0123456789ABCDEF]


def noise_bits_of(seeds: list[int], positions: list[int], tokens: list[int], choice: int = 0) -> torch.Tensor:
    return noise_bits(
        torch.tensor([signed(seed) for seed in seeds]),
        torch.full((len(seeds),), choice, dtype=torch.int32),
        torch.tensor(positions, dtype=torch.int32),
        torch.tensor(tokens, dtype=torch.int32),
    )


@pytest.mark.parametrize("choice", [0, 3])
def test_integers_equal_the_plain_reference(choice: int) -> None:
    tokens = [0, 1, 2, 1000, 49151, 262143]
    for position in (0, 1, 77, 100_000):
        rows = noise_bits_of(SEEDS, [position] * len(SEEDS), tokens, choice).tolist()
        for seed, row in zip(SEEDS, rows, strict=True):
            assert [value & MASK for value in row] == [bits(seed, choice, position, token) for token in tokens]


def test_values_follow_from_the_integers() -> None:
    tokens = torch.arange(2000, dtype=torch.int32)
    seed, position = torch.tensor([5]), torch.tensor([9], dtype=torch.int32)
    values = gumbel_noise(seed, FIRST_CHOICE, position, tokens)[0].tolist()
    for token, value in enumerate(values):
        uniform = (2 * (bits(5, 0, 9, token) >> 9) + 1) / 2**24
        assert value == pytest.approx(-math.log(-math.log(uniform)), rel=1e-5, abs=1e-6)


def test_extreme_integers_stay_finite() -> None:
    """The smallest and the largest 23-bit numbers lie strictly inside (0, 1)."""
    for smallest_or_largest in (0, 2**23 - 1):
        uniform = torch.tensor((2 * smallest_or_largest + 1) * 2.0**-24)
        assert 0 < uniform < 1
        assert torch.isfinite(-torch.log(-torch.log(uniform)))


def test_rows_do_not_depend_on_their_neighbours() -> None:
    tokens = [3, 1, 4]
    together = noise_bits_of([1, 2, 3], [7, 8, 9], tokens)
    assert torch.equal(together[1:2], noise_bits_of([2], [8], tokens))
    each_their_own = noise_bits(
        torch.tensor([1, 2, 2]),
        torch.tensor([0, 0, 5], dtype=torch.int32),
        torch.tensor([7, 8, 8], dtype=torch.int32),
        torch.tensor([[3, 1], [4, 3], [3, 1]], dtype=torch.int32),
    )
    assert each_their_own[0].tolist() == together[0, :2].tolist()
    assert each_their_own[1].tolist() == [together[1, 2].item(), together[1, 0].item()]
    assert [value & MASK for value in each_their_own[2].tolist()] == [bits(2, 5, 8, 3), bits(2, 5, 8, 1)]


def test_every_part_of_the_counter_matters() -> None:
    base = bits(1, 0, 5, 10)
    others = [bits(2, 0, 5, 10), bits(1 | 1 << 32, 0, 5, 10), bits(1, 1, 5, 10), bits(1, 0, 6, 10), bits(1, 0, 5, 11)]
    assert len({base, *others}) == 6


@pytest.mark.parametrize("what", ["tokens", "positions", "seeds"])
def test_bits_are_uniform_along_each_axis(what: str) -> None:
    """Chi-square of the top 6 bits over 64 cells: 63 degrees of freedom, 5 deviations wide."""
    size = 64 * 500
    axis = torch.arange(size)
    seed = axis if what == "seeds" else torch.tensor([7])
    position = axis.int() if what == "positions" else torch.zeros(len(seed), dtype=torch.int32)
    if what == "positions":
        seed = torch.full((size,), 7)
    token = axis.int() if what == "tokens" else torch.tensor([11], dtype=torch.int32)
    cells = (noise_bits(seed, torch.zeros(len(seed), dtype=torch.int32), position, token).flatten().long() & MASK) >> 26
    counts = torch.bincount(cells, minlength=64).double()
    chi_square = ((counts - 500) ** 2 / 500).sum().item()
    assert abs(chi_square - 63) < 5 * math.sqrt(2 * 63)


def test_moments_are_those_of_a_gumbel_distribution() -> None:
    position = torch.tensor([0], dtype=torch.int32)
    values = gumbel_noise(torch.tensor([3]), FIRST_CHOICE, position, torch.arange(200_000).int())
    assert values.mean().item() == pytest.approx(0.57722, abs=0.01)
    assert values.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)
