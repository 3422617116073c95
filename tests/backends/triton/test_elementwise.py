"""Norms, gated activations and linears of one row against the reference."""

from __future__ import annotations

import pytest
import torch

from tests.backends.triton.support import assert_close, random
from tgi_core.reference import ReferenceKernels
from tgi_triton import TritonKernels

REFERENCE = ReferenceKernels()
ACTIVATIONS = ["silu", "gelu", "gelu_tanh"]


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("size", [1, 96, 130])
def test_rms_norm(
    kernels: TritonKernels, generator: torch.Generator, dtype: torch.dtype, offset: float, size: int
) -> None:
    x, weight = random(generator, 3, size, dtype=dtype), random(generator, size, dtype=dtype)
    assert_close(kernels.rms_norm(x, weight, 1e-5, offset), REFERENCE.rms_norm(x, weight, 1e-5, offset))


def test_rms_norm_of_heads_that_lie_apart(kernels: TritonKernels, generator: torch.Generator) -> None:
    x_THD = random(generator, 3, 6, 16, dtype=torch.float32)[:, 1:4]
    weight_D = random(generator, 16, dtype=torch.float32)
    assert_close(kernels.rms_norm(x_THD, weight_D, 1e-5, 0.0), REFERENCE.rms_norm(x_THD, weight_D, 1e-5, 0.0))


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_add_rms_norm(kernels: TritonKernels, generator: torch.Generator, dtype: torch.dtype, offset: float) -> None:
    x, residual = random(generator, 4, 48, dtype=dtype), random(generator, 4, 48, dtype=dtype)
    weight = random(generator, 48, dtype=dtype)
    expected = REFERENCE.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5, offset)
    actual = kernels.add_rms_norm(x, residual, weight, 1e-5, offset)
    assert_close(actual[0], expected[0])
    # Not bit for bit: the interpreter cuts bfloat16 off where devices round.
    assert_close(actual[1], expected[1])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", [1, 2, 96, 130, 5000])
def test_layer_norm(
    kernels: TritonKernels, generator: torch.Generator, dtype: torch.dtype, size: int, bias: bool
) -> None:
    x, weight = random(generator, 3, size, dtype=dtype), random(generator, size, dtype=dtype)
    bias_E = random(generator, size, dtype=dtype) if bias else None
    actual = kernels.layer_norm(x, weight, bias_E, 1e-5)
    assert actual.dtype is dtype
    assert_close(actual, REFERENCE.layer_norm(x, weight, bias_E, 1e-5))


def test_layer_norm_of_rows_far_from_zero_and_apart(kernels: TritonKernels, generator: torch.Generator) -> None:
    """A mean a thousand times the spread, and rows that are slices of longer ones."""
    x_TE = (random(generator, 5, 200, dtype=torch.float32) + 1000)[:, :100]
    weight_E = random(generator, 100, dtype=torch.float32)
    actual, expected = kernels.layer_norm(x_TE, weight_E, None, 1e-5), REFERENCE.layer_norm(x_TE, weight_E, None, 1e-5)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


def test_layer_norm_of_no_rows(kernels: TritonKernels) -> None:
    assert kernels.layer_norm(torch.zeros(0, 8), torch.ones(8), None, 1e-5).shape == (0, 8)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_mul(
    kernels: TritonKernels, generator: torch.Generator, dtype: torch.dtype, activation: str
) -> None:
    x = random(generator, 3, 2 * 1100, dtype=dtype)
    assert_close(kernels.activation_mul(x, activation), REFERENCE.activation_mul(x, activation))


def test_an_unknown_activation_is_refused(kernels: TritonKernels) -> None:
    with pytest.raises(ValueError, match="relu"):
        kernels.activation_mul(torch.zeros(1, 4), "relu")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("inputs", [32, 100])
def test_linear_of_one_row(
    kernels: TritonKernels, generator: torch.Generator, dtype: torch.dtype, inputs: int, bias: bool
) -> None:
    x, weight = random(generator, 1, inputs, dtype=dtype), random(generator, 14, inputs, dtype=dtype) / 8
    bias_N = random(generator, 14, dtype=dtype) if bias else None
    assert_close(kernels.linear(x, weight, bias_N), REFERENCE.linear(x, weight, bias_N))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_linear(
    kernels: TritonKernels, generator: torch.Generator, dtype: torch.dtype, activation: str, rows: int
) -> None:
    x, weight = random(generator, rows, 100, dtype=dtype), random(generator, 14, 100, dtype=dtype) / 10
    bias_N = random(generator, 14, dtype=dtype)
    expected = REFERENCE.gated_linear(x, weight, bias_N, activation)
    assert_close(kernels.gated_linear(x, weight, bias_N, activation), expected)
