"""The numbers that quantized weights stand for."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.quantized import e4m3, mxfp4_numbers, quantize_blocks, quantize_mxfp4, random_e4m3, spread_scale
from tgi_core.weights.dequantize import Dequantizer

BLOCK = (128, 128)
FLOAT32 = Dequantizer(torch.float32)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def test_every_8_bit_float() -> None:
    weight = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)[None]
    found = FLOAT32.fp8(weight, torch.ones(1, 1))[0].tolist()
    for byte, number in enumerate(found):
        assert number == e4m3(byte) or (math.isnan(number) and math.isnan(e4m3(byte)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(128, 128), (256, 384), (1, 1), (200, 300), (129, 127), (64, 1000)])
def test_blocks_and_their_borders(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = random_e4m3(*shape)
    scale = torch.rand(-(-shape[0] // 128), -(-shape[1] // 128)) + 0.01
    expected = (weight.double() * spread_scale(scale, BLOCK, shape).double()).float().to(dtype)
    found = Dequantizer(dtype).fp8(weight, scale, BLOCK)
    assert found.dtype is dtype
    assert torch.equal(found, expected)


def test_numbers_that_fit_come_back_exactly() -> None:
    weight = random_e4m3(200, 300).float() * spread_scale(torch.tensor([[0.5, 2, 8], [0.25, 1, 4]]), BLOCK, (200, 300))
    quantized, scale = quantize_blocks(weight, BLOCK)
    assert torch.equal(FLOAT32.fp8(quantized, scale, BLOCK), weight)


def test_scales_that_are_exponents() -> None:
    weight = random_e4m3(130, 130)
    scale = torch.tensor([[0.5, 2.0], [2.0**-20, 1.0]])
    found = FLOAT32.fp8(weight, scale.to(torch.float8_e8m0fnu), BLOCK)
    assert torch.equal(found, weight.float() * spread_scale(scale, BLOCK, (130, 130)))


@pytest.mark.parametrize("scale_shape", [(1, 1), (70, 1), (1, 50)])
def test_one_scale_a_tensor_or_a_row_or_a_column(scale_shape: tuple[int, ...]) -> None:
    weight, scale = random_e4m3(70, 50), torch.rand(scale_shape) + 0.01
    assert torch.equal(FLOAT32.fp8(weight, scale), weight.float() * scale)


def test_more_rows_than_are_taken_at_a_time() -> None:
    weight, scale = random_e4m3(3000, 700), torch.rand(3000, 1)
    assert torch.equal(FLOAT32.fp8(weight, scale), weight.float() * scale)


def test_wide_blocks_are_taken_in_parts() -> None:
    weight, scale = random_e4m3(200, 20_000), torch.rand(2, 157)
    expected = weight.float() * spread_scale(scale, BLOCK, (200, 20_000))
    assert torch.equal(FLOAT32.fp8(weight, scale, BLOCK), expected)


def test_stacked_matrices() -> None:
    weight = random_e4m3(3, 40, 50)
    per_row, blocks = torch.rand(3, 40, 1), torch.rand(3, 2, 3)
    assert torch.equal(FLOAT32.fp8(weight, per_row), weight.float() * per_row)
    found = FLOAT32.fp8(weight, blocks, (32, 20))
    for expert in range(3):
        spread = spread_scale(blocks[expert], (32, 20), (40, 50))
        assert torch.equal(found[expert], weight[expert].float() * spread)


def test_every_4_bit_float_with_every_scale() -> None:
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).repeat(256, 1, 1)
    scales = torch.arange(255, dtype=torch.uint8).repeat_interleave(16).view(255, 16)
    found = FLOAT32.mxfp4(blocks[:255], scales)
    assert torch.equal(found, mxfp4_numbers(blocks[:255], scales))
    assert FLOAT32.mxfp4(blocks[:1], torch.full((1, 16), 255, dtype=torch.uint8)).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_4_bit_floats_come_back_exactly(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 70, 20, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(120, 134, (3, 70, 20), generator=generator, dtype=torch.uint8)
    found = Dequantizer(dtype).mxfp4(blocks, scales)
    assert found.shape == (3, 70, 640)
    assert found.dtype is dtype
    expected = mxfp4_numbers(blocks, scales)
    assert torch.equal(found.float(), expected)
    again = FLOAT32.mxfp4(*quantize_mxfp4(expected))
    assert torch.equal(again, expected)


def test_more_blocks_than_are_taken_at_a_time() -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 700, 20, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(120, 134, (3, 700, 20), generator=generator, dtype=torch.uint8)
    rows = [FLOAT32.mxfp4(blocks[:, row], scales[:, row]) for row in range(700)]
    assert torch.equal(FLOAT32.mxfp4(blocks, scales), torch.stack(rows, dim=1))
