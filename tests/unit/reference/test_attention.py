"""Paged attention against a dense formulation, and the cache operations."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec, Kernels
from tgi_core.reference import ReferenceKernels
from tgi_cpu.kernels import CpuKernels

BLOCK = 16
both_kernels = pytest.mark.parametrize("kernels", [ReferenceKernels(), CpuKernels()], ids=["reference", "cpu"])


class Case:
    """A ragged batch over a shuffled cache; ``expected`` is computed without a cache."""

    def __init__(
        self, spec: AttentionSpec, q_lens: list[int], kv_lens: list[int], dtype: torch.dtype = torch.float32
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.spec = spec
        self.bias = None if spec.distances is None else torch.randn(spec.num_heads, spec.distances, generator=generator)
        columns = -(-max(kv_lens) // BLOCK)
        num_blocks = columns * len(q_lens) + 1
        # Stale entries are finite, and large enough to be noticed.
        self.cache = torch.full(spec.cache_shape(num_blocks, BLOCK), 1e3, dtype=dtype)
        tables = (
            torch.randperm(num_blocks - 1, generator=generator)[: columns * len(q_lens)].view(len(q_lens), -1).int()
        )
        queries, expected, slots = [], [], []
        for row, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
            positions = torch.arange(kv_len)
            mapping = tables[row, positions // BLOCK].long() * BLOCK + positions % BLOCK
            q = torch.randn(q_len, spec.num_heads, spec.head_dim, generator=generator).to(dtype)
            k, v = torch.randn(2, kv_len, spec.num_kv_heads, spec.head_dim, generator=generator).to(dtype)
            if spec.latent_values is not None:
                v = k[..., : spec.latent_values]
            ReferenceKernels().write_kv((k,) if spec.latent_values else (k, v), self.cache, mapping)
            if spec.window is not None:
                # Columns that the window has left name blocks of somebody else.
                tables[row, : max(0, kv_len - q_len + 1 - spec.window) // BLOCK] = num_blocks - 1
            queries.append(q)
            expected.append(dense(q, k, v, spec, self.bias))
            slots.append(mapping[kv_len - q_len :])
        self.q, self.expected = torch.cat(queries), torch.cat(expected)
        lens = torch.tensor([0, *q_lens])
        self.batch = AttentionBatch(
            q_lens=q_lens,
            kv_lens=kv_lens,
            num_decodes=next((row for row, q_len in enumerate(q_lens) if q_len > 1), len(q_lens)),
            q_starts_B=lens.cumsum(0),
            kv_lens_B=torch.tensor(kv_lens, dtype=torch.int32),
            block_tables_BM=tables,
            slot_mapping_T=torch.cat(slots),
            block_size=BLOCK,
            window=spec.window,
        )

    def attend(self, kernels: Kernels) -> Tensor:
        prepared = kernels.prepare_attention(self.batch, self.spec)
        return kernels.attention(self.q, self.cache, prepared, self.spec, distance_bias_HX=self.bias)


def dense(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, bias: Tensor | None = None) -> Tensor:
    """One row, query by query and head by head."""
    output = torch.empty((*q.shape[:2], v.shape[-1]), dtype=torch.float64)
    for query in range(len(q)):
        position = len(k) - len(q) + query
        first = 0 if spec.window is None else max(0, position - spec.window + 1)
        if spec.chunk is not None:
            first = max(start for start in range(0, position + 1, spec.chunk))
        for head in range(spec.num_heads):
            kv_head = head * spec.num_kv_heads // spec.num_heads
            scores = k[first : position + 1, kv_head].double() @ q[query, head].double() * spec.scale
            if spec.soft_cap is not None:
                scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
            if spec.alibi_slopes is not None:
                scores -= spec.alibi_slopes[head] * (position - torch.arange(first, position + 1))
            if bias is not None:
                last = bias.shape[1] - 1
                scores += torch.tensor([bias[head, min(position - key, last)] for key in range(first, position + 1)])
            output[query, head] = scores.softmax(0) @ v[first : position + 1, kv_head].double()
    return output


def spec(heads: int = 6, kv_heads: int = 2, window: int | None = None, soft_cap: float | None = None) -> AttentionSpec:
    return AttentionSpec(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=16, scale=0.3, window=window, soft_cap=soft_cap
    )


BATCHES = {
    "one-decode": ([1], [1]),
    "decodes": ([1, 1, 1], [5, 16, 33]),
    "decodes-of-very-different-length": ([1, 1, 1, 1], [600, 3, 40, 1]),
    "prefill": ([20], [20]),
    "prefills": ([17, 2, 130], [17, 40, 300]),
    "mixed": ([1, 1, 7, 1], [1, 50, 7, 20]),
    "behind-a-key-tile": ([1, 3], [1100, 700]),
}


@both_kernels
@pytest.mark.parametrize("name", list(BATCHES))
@pytest.mark.parametrize("window", [None, 1, 20, 70])
def test_equals_dense_attention(kernels: Kernels, name: str, window: int | None) -> None:
    q_lens, kv_lens = BATCHES[name]
    case = Case(spec(window=window), q_lens, kv_lens)
    torch.testing.assert_close(case.attend(kernels).double(), case.expected, rtol=1e-4, atol=1e-5)


@both_kernels
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (9, 3), (8, 1)])
def test_head_counts(kernels: Kernels, heads: int, kv_heads: int) -> None:
    case = Case(spec(heads, kv_heads), [1, 1, 6], [20, 3, 9])
    torch.testing.assert_close(case.attend(kernels).double(), case.expected, rtol=1e-4, atol=1e-5)


@both_kernels
def test_bfloat16_is_close(kernels: Kernels) -> None:
    case = Case(spec(), [1, 1, 40], [200, 3, 90], torch.bfloat16)
    output = case.attend(kernels)
    assert output.dtype is torch.bfloat16
    torch.testing.assert_close(output.double(), case.expected, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("window", [None, 20])
def test_a_bias_on_distance_is_the_references(window: int | None) -> None:
    biased = replace(spec(window=window), alibi_slopes=(0.5, 0.25, 0.1, 0.05, 0.0, 0.01))
    assert not CpuKernels().supports("attention", biased)
    case = Case(biased, [1, 1, 7], [20, 50, 30])
    torch.testing.assert_close(case.attend(ReferenceKernels()).double(), case.expected, rtol=1e-4, atol=1e-5)


def test_soft_cap_is_the_references() -> None:
    capped = spec(soft_cap=0.5)
    assert not CpuKernels().supports("attention", capped)
    assert CpuKernels().supports("attention", spec())
    case = Case(capped, [1, 5], [30, 12])
    torch.testing.assert_close(case.attend(ReferenceKernels()).double(), case.expected, rtol=1e-4, atol=1e-5)


FEATURES = {
    "chunks": {"window": 20, "chunk": 20},
    "chunks-of-blocks": {"window": BLOCK, "chunk": BLOCK},
    "latent-values": {"num_kv_heads": 1, "latent_values": 12},
    "latent-values-in-a-window": {"num_kv_heads": 1, "latent_values": 12, "window": 20},
    "a-learned-bias-on-distance": {"distances": 9},
}


@pytest.mark.parametrize("name", list(FEATURES))
def test_features_are_the_references(name: str) -> None:
    featured = replace(spec(), **FEATURES[name])
    assert featured.features
    assert not CpuKernels().supports("attention", featured)
    case = Case(featured, [1, 1, 1, 7, 30], [20, 21, 50, 30, 70])
    output = case.attend(ReferenceKernels())
    assert output.shape == (40, 6, featured.latent_values or 16)
    torch.testing.assert_close(output.double(), case.expected, rtol=1e-4, atol=1e-5)


def test_latent_values_are_cached_as_keys_alone() -> None:
    latent = replace(spec(kv_heads=1), latent_values=12)
    assert latent.cache_shape(3, BLOCK) == (3, BLOCK, 1, 1, 16)
    assert spec(kv_heads=1).cache_shape(3, BLOCK) == (3, BLOCK, 2, 1, 16)
    cache = torch.zeros(latent.cache_shape(3, BLOCK))
    key = torch.randn(2, 1, 16)
    ReferenceKernels().write_kv((key,), cache, torch.tensor([40, 3]))
    assert torch.equal(cache.flatten(0, 1)[[40, 3], 0], key)
    assert cache.count_nonzero() == key.count_nonzero()


def test_a_broken_neighbour_does_not_leak() -> None:
    """One request's NaN must not reach another, whatever blocks stand in its padding."""
    case = Case(spec(), [1, 1, 9], [200, 3, 20])
    block = case.batch.block_tables_BM[0]
    case.cache[block.long()] = float("nan")
    for kernels in (ReferenceKernels(), CpuKernels()):
        output = case.attend(kernels)
        assert output[0].isnan().all()
        torch.testing.assert_close(output[1:].double(), case.expected[1:], rtol=1e-4, atol=1e-5)


@both_kernels
@pytest.mark.parametrize("rotary_dim", [None, 16, 4])
def test_rope_write_kv_equals_its_parts(kernels: Kernels, rotary_dim: int | None) -> None:
    layer, reference = spec(), ReferenceKernels()
    qkv = torch.randn(5, 10 * 16, generator=torch.Generator().manual_seed(0))
    heads = qkv.view(5, 10, 16).clone()
    q, k, v = heads[:, :6], heads[:, 6:8], heads[:, 8:]
    rotary = None
    if rotary_dim is not None:
        angles = torch.randn(5, rotary_dim // 2, generator=torch.Generator().manual_seed(1))
        rotary = angles.cos(), angles.sin()
        q, k = reference.rope(q, *rotary), reference.rope(k, *rotary)
    slots = torch.tensor([3, 17, 40, 16, 0])
    cache, expected_cache = torch.zeros(2, 3, BLOCK, 2, 2, 16).unbind(0)
    reference.write_kv((k, v), expected_cache, slots)
    result = kernels.rope_write_kv(qkv, layer, rotary, cache, slots)
    torch.testing.assert_close(result, q)
    torch.testing.assert_close(cache, expected_cache)
    entry = cache.view(-1, 2, 2, 16)[40]
    torch.testing.assert_close(entry[0], k[2])
    torch.testing.assert_close(entry[1], v[2])


@both_kernels
def test_copy_blocks_and_advance_tables(kernels: Kernels) -> None:
    cache = torch.arange(4 * 2 * 2 * 1 * 3, dtype=torch.float32).view(4, 2, 2, 1, 3)
    before = cache.clone()
    kernels.copy_blocks(cache, torch.tensor([0, 3]), torch.tensor([2, 1]))
    assert torch.equal(cache, before[[0, 3, 0, 3]])
    # The last row is the scratch row, where padding goes as often as it likes.
    tokens, lengths = torch.zeros(4, 4, dtype=torch.int32), torch.tensor([1, 0, 3, 1], dtype=torch.int32)
    kernels.advance_tables(tokens, lengths, torch.tensor([2, 0, 3, 3]), torch.tensor([7, 8, 9, 9]))
    assert tokens[:3].tolist() == [[0, 8, 0, 0], [0, 0, 0, 0], [0, 0, 0, 7]]
    assert lengths.tolist() == [2, 0, 4, 1]


@both_kernels
def test_embedding_and_linear(kernels: Kernels) -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(6, 5, generator=generator)
    ids = torch.tensor([5, 0, 5], dtype=torch.int32)
    assert torch.equal(kernels.embedding(ids, table), torch.stack([table[5], table[0], table[5]]))
    weight, bias, x = torch.randn(7, 5, generator=generator), torch.randn(7, generator=generator), table[:2]
    expected = (x[:, None, :].double() * weight.double()).sum(-1)
    torch.testing.assert_close(kernels.linear(x, kernels.pack_linear(weight), None), expected.float())
    torch.testing.assert_close(kernels.linear(x, kernels.pack_linear(weight), bias), (expected + bias).float())
