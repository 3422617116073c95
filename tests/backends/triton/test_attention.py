"""Paged attention of ragged batches against the reference: prefill, decode, mixed, windows, soft caps, splits."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from tests.backends.triton.support import DESCRIPTORS, assert_close, attention_spec, make_step
from tgi_core.reference import ReferenceKernels
from tgi_triton import TritonKernels
from tgi_triton.decode_attention import choose_splits

REFERENCE = ReferenceKernels()
BATCHES = {
    "decodes": [(1, 1), (1, 40), (1, 17), (1, 16)],
    "one decode": [(1, 70)],
    "prefill": [(7, 7), (3, 20), (9, 41)],
    "mixed": [(1, 33), (1, 2), (5, 21), (2, 2)],
    "a chunk of one token": [(1, 12), (4, 9), (1, 30)],
}
SPECS = {
    "one head a key head": attention_spec(2, 2, 16),
    "grouped": attention_spec(4, 2, 16),
    "three a key head, odd size": attention_spec(6, 2, 20),
    "eight a key head": attention_spec(8, 1, 32),
    "window": attention_spec(4, 2, 16, window=6),
    "window and soft cap": attention_spec(4, 2, 16, window=18, soft_cap=3.0),
    "bias on distance": replace(attention_spec(6, 2, 16), alibi_slopes=(0.5, 0.25, 0.1, 0.05, 0.0, 1.0)),
    "bias, window, soft cap": replace(attention_spec(2, 2, 16, 6, 3.0), alibi_slopes=(0.5, 0.25)),
    "sinks": replace(attention_spec(6, 2, 16), sinks=True),
    "sinks, window and soft cap": replace(attention_spec(4, 2, 16, window=6, soft_cap=3.0), sinks=True),
}


@pytest.mark.parametrize("batch", list(BATCHES))
@pytest.mark.parametrize("spec", list(SPECS))
def test_attention(kernels: TritonKernels, spec: str, batch: str) -> None:
    check(kernels, spec, batch, torch.float32, block_size=4)


@pytest.mark.parametrize("spec", ["grouped", "window and soft cap"])
def test_attention_in_short_types(kernels: TritonKernels, dtype: torch.dtype, spec: str) -> None:
    check(kernels, spec, "mixed", dtype, block_size=16)


@pytest.mark.parametrize("batch", ["decodes", "mixed"])
@pytest.mark.parametrize("spec", ["grouped", "window"])
def test_tiles_that_the_copy_engine_fetches(spec: str, batch: str) -> None:
    check(TritonKernels(torch.device("cpu"), DESCRIPTORS), spec, batch, torch.float32, block_size=32)


def test_stale_table_entries_and_cache_are_not_read(kernels: TritonKernels) -> None:
    """Columns before a window and past a row's end may hold any block, and a block's tail any finite number."""
    spec = SPECS["window"]
    step = make_step(spec, BATCHES["mixed"], block_size=4, dtype=torch.float32)
    clean = kernels.attention(step.q_THD, step.cache_NP2KD, kernels.prepare_attention(step.batch, spec), spec)
    for row, (q_len, kv_len) in enumerate(BATCHES["mixed"]):
        last = int(step.batch.block_tables_BM[row, (kv_len - 1) // 4])
        step.cache_NP2KD[last, kv_len % 4 or 4 :] = 1e30
        step.batch.block_tables_BM[row, : max(0, kv_len - q_len - 5) // 4] = 0
    step.cache_NP2KD[0] += 0
    dirty = kernels.attention(step.q_THD, step.cache_NP2KD, kernels.prepare_attention(step.batch, spec), spec)
    assert torch.equal(clean, dirty)


def test_host_lengths_of_decodes_are_upper_bounds(kernels: TritonKernels) -> None:
    spec = SPECS["grouped"]
    step = make_step(spec, BATCHES["decodes"], block_size=4, dtype=torch.float32)
    bound = step.batch._replace(kv_lens=[1000] * 4)
    expected = REFERENCE.attention(step.q_THD, step.cache_NP2KD, step.batch, spec)
    assert_close(
        kernels.attention(step.q_THD, step.cache_NP2KD, kernels.prepare_attention(bound, spec), spec), expected
    )


def test_few_rows_are_split_and_many_are_not() -> None:
    assert choose_splits(1, 8, 132) == 17
    assert choose_splits(1, 1, 132) == 32
    assert choose_splits(32, 8, 132) == 1


def check(kernels: TritonKernels, spec_name: str, batch: str, dtype: torch.dtype, *, block_size: int) -> None:
    spec = SPECS[spec_name]
    step = make_step(spec, BATCHES[batch], block_size=block_size, dtype=dtype)
    sinks_H = torch.linspace(-1, 3, spec.num_heads).to(dtype) if spec.sinks else None
    expected = REFERENCE.attention(step.q_THD, step.cache_NP2KD, step.batch, spec, sinks_H)
    # Twice: a launch must leave its scratch as it found it.
    for _ in range(2):
        prepared = kernels.prepare_attention(step.batch, spec)
        assert_close(kernels.attention(step.q_THD, step.cache_NP2KD, prepared, spec, sinks_H), expected)
