"""Norms, gated activations and rotary embedding against formulations of their own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tgi_core.contract import Kernels
from tgi_core.reference import ReferenceKernels
from tgi_cpu.kernels import CpuKernels

both_kernels = pytest.mark.parametrize("kernels", [ReferenceKernels(), CpuKernels()], ids=["reference", "cpu"])
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(actual: Tensor, expected: Tensor) -> None:
    """Equal up to a rounding of the dtype and one more of what went in."""
    tolerance = 2**-7 if actual.dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


@both_kernels
@both_dtypes
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(1, 8), (5, 64), (3, 4, 16)])
def test_rms_norm(kernels: Kernels, dtype: torch.dtype, offset: float, shape: tuple[int, ...]) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype, seed=1)
    before = x.clone(), weight.clone()
    expected = x.double() / ((x.double() ** 2).mean(-1, keepdim=True) + 1e-2).sqrt() * (weight.double() + offset)
    close(kernels.rms_norm(x, weight, 1e-2, offset), expected)
    assert torch.equal(x, before[0])
    assert torch.equal(weight, before[1])


@both_kernels
def test_rms_norm_of_zeros_is_zero(kernels: Kernels) -> None:
    assert not kernels.rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6, 0.0).any()


@both_kernels
@both_dtypes
def test_rms_norm_takes_heads_out_of_a_merged_projection(kernels: Kernels, dtype: torch.dtype) -> None:
    merged = random(5, 6, 16, dtype=dtype)
    weight = random(16, dtype=dtype, seed=1)
    view = kernels.rms_norm(merged[:, 1:3], weight, 1e-6, 0.0)
    assert torch.equal(view, kernels.rms_norm(merged[:, 1:3].contiguous(), weight, 1e-6, 0.0))


@both_kernels
@both_dtypes
def test_add_rms_norm(kernels: Kernels, dtype: torch.dtype) -> None:
    x, residual, weight = (
        random(4, 32, dtype=dtype),
        random(4, 32, dtype=dtype, seed=1),
        random(32, dtype=dtype, seed=2),
    )
    total = residual + x
    normed, new_residual = kernels.add_rms_norm(x, residual, weight, 1e-6, 0.0)
    assert torch.equal(new_residual, total)
    close(normed, total.double() / ((total.double() ** 2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double())


@both_kernels
@both_dtypes
@pytest.mark.parametrize("with_bias", [False, True])
def test_layer_norm(kernels: Kernels, dtype: torch.dtype, with_bias: bool) -> None:
    x, weight = random(4, 32, dtype=dtype), random(32, dtype=dtype, seed=1)
    bias = random(32, dtype=dtype, seed=2) if with_bias else None
    centred = x.double() - x.double().mean(-1, keepdim=True)
    expected = centred / ((centred**2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    close(kernels.layer_norm(x, weight, bias, 1e-6), expected if bias is None else expected + bias.double())


@both_kernels
@both_dtypes
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_activation_mul(kernels: Kernels, dtype: torch.dtype, activation: str) -> None:
    x = random(3, 20, dtype=dtype)
    gate, up = x[:, :10].double(), x[:, 10:].double()
    expected = {
        "silu": gate / (1 + torch.exp(-gate)),
        "gelu": gate * 0.5 * (1 + torch.erf(gate / math.sqrt(2))),
        "gelu_tanh": gate * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))),
    }[activation]
    close(kernels.activation_mul(x, activation), expected * up)


@both_kernels
def test_unknown_activation(kernels: Kernels) -> None:
    with pytest.raises(ValueError, match="relu9"):
        kernels.activation(torch.zeros(1, 2), "relu9")
    with pytest.raises(ValueError, match="relu9"):
        kernels.activation_mul(torch.zeros(1, 2), "relu9")


@both_kernels
@both_dtypes
@pytest.mark.parametrize("rotary_dim", [16, 8, 2])
def test_rope_turns_pairs_of_features(kernels: Kernels, dtype: torch.dtype, rotary_dim: int) -> None:
    """Features i and i + R are the parts of a complex number that turns by the angle; the rest stays."""
    x, half = random(5, 3, 16, dtype=dtype), rotary_dim // 2
    angles = random(5, half, seed=1)
    turned = torch.complex(x[..., :half].double(), x[..., half:rotary_dim].double()) * torch.polar(
        torch.ones(5, 1, half, dtype=torch.float64), angles[:, None].double()
    )
    expected = torch.cat((turned.real, turned.imag, x[..., rotary_dim:].double()), -1)
    close(kernels.rope(x.clone(), angles.cos(), angles.sin()), expected)
