"""Rotary embedding, head norms and the KV write in one launch against the reference's steps."""

from __future__ import annotations

import pytest
import torch

from tests.backends.triton.support import assert_close, attention_spec, make_step, random
from tgi_core.contract import HeadNorms
from tgi_core.reference import ReferenceKernels
from tgi_triton import TritonKernels

REFERENCE = ReferenceKernels()
LENGTHS = [(1, 9), (1, 1), (5, 13)]
MODELS = {
    "whole": ((4, 2, 16), 8),
    "partial": ((4, 2, 24), 8),
    "odd half": ((6, 2, 20), 10),
    "many heads": ((20, 4, 16), 8),
}


def rotary(tokens: int, half: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin side by side in one table, as the shard cuts them."""
    angles = torch.rand(tokens, half, generator=torch.Generator().manual_seed(1)) * 6
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    return table[:, :half], table[:, half:]


@pytest.mark.parametrize("model", list(MODELS))
def test_rope_write_kv(kernels: TritonKernels, dtype: torch.dtype, model: str) -> None:
    sizes, half = MODELS[model]
    spec = attention_spec(*sizes)
    step = make_step(spec, LENGTHS, block_size=4, dtype=dtype)
    tables = rotary(len(step.qkv_TX), half)
    mapping_T = step.batch.slot_mapping_T
    expected_cache, cache = step.cache_NP2KD.clone(), step.cache_NP2KD.clone()
    expected = REFERENCE.rope_write_kv(step.qkv_TX.clone(), spec, tables, expected_cache, mapping_T)
    assert_close(kernels.rope_write_kv(step.qkv_TX, spec, tables, cache, mapping_T), expected)
    assert_close(cache, expected_cache)
    assert not torch.equal(cache, step.cache_NP2KD)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("model", list(MODELS))
def test_norm_rope_write_kv(kernels: TritonKernels, dtype: torch.dtype, model: str, offset: float) -> None:
    sizes, half = MODELS[model]
    spec = attention_spec(*sizes)
    step = make_step(spec, LENGTHS, block_size=4, dtype=dtype)
    generator = torch.Generator().manual_seed(2)
    q_norm_D, k_norm_D = (random(generator, spec.head_dim, dtype=dtype) for _ in range(2))
    norms = HeadNorms(q_norm_D, k_norm_D, 1e-5, offset)
    tables = rotary(len(step.qkv_TX), half)
    mapping_T = step.batch.slot_mapping_T
    expected_cache, cache = step.cache_NP2KD.clone(), step.cache_NP2KD.clone()
    expected = REFERENCE.norm_rope_write_kv(step.qkv_TX.clone(), spec, tables, expected_cache, mapping_T, norms=norms)
    assert_close(kernels.norm_rope_write_kv(step.qkv_TX, spec, tables, cache, mapping_T, norms=norms), expected)
    assert_close(cache, expected_cache)


def test_without_a_rotary_embedding(kernels: TritonKernels) -> None:
    spec = attention_spec(4, 2, 16)
    step = make_step(spec, LENGTHS, block_size=4, dtype=torch.float32)
    cache = step.cache_NP2KD.clone()
    q_THD = kernels.rope_write_kv(step.qkv_TX, spec, None, cache, step.batch.slot_mapping_T)
    assert torch.equal(q_THD.flatten(1), step.qkv_TX[:, : 4 * 16])
    # Attention reads them so.
    assert q_THD.is_contiguous()
    entries = cache.flatten(0, 1)[step.batch.slot_mapping_T]
    assert torch.equal(entries.flatten(1), step.qkv_TX[:, 4 * 16 :])
