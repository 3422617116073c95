"""The kernels over the real intel-extension-for-pytorch 2.8, on the CPU; run by ``make test-ipex`` only."""

from __future__ import annotations

import pytest
import torch

from tests.backends.triton.support import assert_close, attention_spec, make_step
from tgi_core.reference import ReferenceKernels
from tgi_xpu.ipex import IpexKernels, open_ipex

DTYPES = [torch.float32, torch.bfloat16]
BATCHES = {
    "decodes": [(1, 1), (1, 40), (1, 17), (1, 16)],
    "prompts": [(7, 7), (3, 20), (9, 41)],
    "both": [(1, 33), (1, 2), (5, 21), (2, 2)],
}


@pytest.fixture(scope="module")
def kernels() -> IpexKernels:
    return open_ipex(torch.device("cpu"))


def test_its_paged_attention_is_used(kernels: IpexKernels) -> None:
    assert "only decodes attend" in kernels.notes[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_operations(kernels: IpexKernels, dtype: torch.dtype) -> None:
    check_elementwise(kernels, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (6, None), (None, 5.0)])
def test_attention(kernels: IpexKernels, dtype: torch.dtype, window: int | None, soft_cap: float | None) -> None:
    check_attention(kernels, dtype, window=window, soft_cap=soft_cap)


def check_elementwise(kernels: IpexKernels, dtype: torch.dtype) -> None:
    """Norms and activations against the reference, those that the library lacks too."""
    reference = ReferenceKernels()
    generator = torch.Generator().manual_seed(0)
    x_TE, residual_TE = (torch.randn(5, 64, generator=generator).to(dtype) for _ in range(2))
    weight_E = torch.randn(64, generator=generator).to(dtype)
    for offset in (0.0, 1.0):
        assert_close(kernels.rms_norm(x_TE, weight_E, 1e-5, offset), reference.rms_norm(x_TE, weight_E, 1e-5, offset))
        x_THD = x_TE.view(5, 4, 16)
        assert_close(
            kernels.rms_norm(x_THD, weight_E[:16], 1e-5, offset),
            reference.rms_norm(x_THD, weight_E[:16], 1e-5, offset),
        )
        expected = reference.add_rms_norm(x_TE.clone(), residual_TE.clone(), weight_E, 1e-5, offset)
        actual = kernels.add_rms_norm(x_TE.clone(), residual_TE.clone(), weight_E, 1e-5, offset)
        for ours, theirs in zip(actual, expected, strict=True):
            assert_close(ours, theirs)
    for activation in ("silu", "gelu", "gelu_tanh"):
        assert_close(kernels.activation_mul(x_TE, activation), reference.activation_mul(x_TE, activation))


def check_attention(kernels: IpexKernels, dtype: torch.dtype, *, window: int | None, soft_cap: float | None) -> None:
    """Decodes, prompts and both in one step against the reference."""
    for heads, kv_heads, size, block_size in ((4, 2, 64, 16), (9, 3, 64, 32), (2, 2, 128, 64)):
        spec = attention_spec(heads, kv_heads, size, window, soft_cap)
        for lengths in BATCHES.values():
            step = make_step(spec, lengths, block_size=block_size, dtype=dtype)
            # Past a row's blocks the table holds anything that is a block.
            batch = step.batch._replace(block_tables_BM=step.batch.block_tables_BM.clamp(max=len(step.cache_NP2KD) - 1))
            prepared = kernels.prepare_attention(batch, spec)
            actual = kernels.attention(step.q_THD, step.cache_NP2KD, prepared, spec)
            assert_close(actual, ReferenceKernels().attention(step.q_THD, step.cache_NP2KD, batch, spec))
