"""Attention over a latent cache against the reference: decodes, chunks, split keys, sizes that fill no tile."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from tests.backends.triton.support import assert_close
from tgi_core.contract import AttentionBatch, AttentionSpec
from tgi_core.reference import ReferenceKernels
from tgi_triton import TritonKernels

REFERENCE = ReferenceKernels()
BLOCK_SIZE = 16
BATCHES = {
    "decodes": [(1, 1), (1, 40), (1, 17), (1, 16)],
    "one long decode": [(1, 150)],
    "mixed": [(1, 33), (1, 2), (5, 21), (18, 18)],
    "chunks": [(7, 7), (3, 70), (16, 64)],
}
SPECS = {
    "six heads": (6, 24, 8),
    "thirty heads of whole tiles": (30, 32, 16),
    "more heads than a program takes": (70, 16, 8),
}


def make_spec(heads: int, latent: int, rest: int) -> AttentionSpec:
    size = latent + rest
    return AttentionSpec(num_heads=heads, num_kv_heads=1, head_dim=size, scale=size**-0.5, latent_values=latent)


@pytest.mark.parametrize("batch", list(BATCHES))
@pytest.mark.parametrize("spec", list(SPECS))
def test_equals_the_reference(kernels: TritonKernels, spec: str, batch: str) -> None:
    check(kernels, make_spec(*SPECS[spec]), batch, torch.float32)


def test_short_types(kernels: TritonKernels, dtype: torch.dtype) -> None:
    check(kernels, make_spec(*SPECS["six heads"]), "mixed", dtype)


def test_what_the_kernel_does_not_take_is_the_references(kernels: TritonKernels) -> None:
    spec = make_spec(4, 512, 64)
    assert kernels.supports("attention", spec)
    for other in (
        replace(spec, latent_values=1024, head_dim=1088),
        replace(spec, head_dim=512 + 256),
        replace(spec, num_kv_heads=2),
        replace(spec, window=8),
        replace(spec, soft_cap=3.0),
        replace(spec, sinks=True),
    ):
        assert not kernels.supports("attention", other)


def check(kernels: TritonKernels, spec: AttentionSpec, batch_name: str, dtype: torch.dtype) -> None:
    rows = BATCHES[batch_name]
    generator = torch.Generator().manual_seed(0)
    q_lens, kv_lens = [q_len for q_len, _ in rows], [kv_len for _, kv_len in rows]
    columns = max(-(-kv_len // BLOCK_SIZE) for kv_len in kv_lens)
    order = torch.randperm(len(rows) * columns, generator=generator).int()
    cache_NP1D = torch.randn(spec.cache_shape(len(rows) * columns, BLOCK_SIZE), generator=generator).to(dtype)
    q_THD = torch.randn(sum(q_lens), spec.num_heads, spec.head_dim, generator=generator).to(dtype)
    batch = AttentionBatch(
        q_lens=q_lens,
        kv_lens=kv_lens,
        num_decodes=q_lens.count(1),
        q_starts_B=torch.tensor([0, *torch.tensor(q_lens).cumsum(0).tolist()]),
        kv_lens_B=torch.tensor(kv_lens, dtype=torch.int32),
        block_tables_BM=order.view(len(rows), columns),
        slot_mapping_T=torch.empty(0, dtype=torch.int64),
        block_size=BLOCK_SIZE,
        window=None,
    )
    expected = REFERENCE.attention(q_THD, cache_NP1D, batch, spec)
    # Twice: a launch must leave its scratch as it found it. Columns behind a row's keys hold anything.
    for _ in range(2):
        prepared = kernels.prepare_attention(batch, spec)
        assert_close(kernels.attention(q_THD, cache_NP1D, prepared, spec), expected)
        for row, kv_len in enumerate(kv_lens):
            batch.block_tables_BM[row, -(-kv_len // BLOCK_SIZE) :] = 1 << 20
