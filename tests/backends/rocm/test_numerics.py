"""The kernels as they are cut for each AMD architecture, in Triton's interpreter, against the reference."""

from __future__ import annotations

import pytest
import torch

from tests.backends.triton.support import assert_close, attention_spec, make_step
from tgi_core.reference import ReferenceKernels
from tgi_triton import TritonKernels, rocm_tuning

REFERENCE = ReferenceKernels()
# Those between gfx90a and gfx942, and both of RDNA, are cut alike.
ARCHITECTURES = ["gfx942", "gfx950", "gfx1100"]


@pytest.fixture(params=ARCHITECTURES)
def kernels(request: pytest.FixtureRequest) -> TritonKernels:
    return TritonKernels(torch.device("cpu"), rocm_tuning(request.param, 8))


def test_architectures_that_are_cut_alike() -> None:
    assert rocm_tuning("gfx90a", 104) == rocm_tuning("gfx942", 104)
    assert rocm_tuning("gfx1201", 64) == rocm_tuning("gfx1100", 64)
    assert rocm_tuning("gfx950", 256) != rocm_tuning("gfx942", 256)


@pytest.mark.parametrize("spec", [attention_spec(8, 2, 64), attention_spec(4, 2, 128, window=50)])
def test_attention(kernels: TritonKernels, spec: object) -> None:
    """Rows longer than a tile and shorter, split over programs."""
    step = make_step(spec, [(1, 150), (1, 3), (40, 170), (2, 2)], block_size=64, dtype=torch.float32)
    prepared = kernels.prepare_attention(step.batch, spec)
    actual = kernels.attention(step.q_THD, step.cache_NP2KD, prepared, spec)
    assert_close(actual, REFERENCE.attention(step.q_THD, step.cache_NP2KD, step.batch, spec))


def test_a_linear_of_one_row(kernels: TritonKernels) -> None:
    generator = torch.Generator().manual_seed(0)
    x_1K, weight_NK = torch.randn(1, 3000, generator=generator), torch.randn(6, 3000, generator=generator)
    torch.testing.assert_close(kernels.linear(x_1K, weight_NK, None), x_1K @ weight_NK.T, rtol=1e-4, atol=1e-3)
