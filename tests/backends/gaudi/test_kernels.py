"""The operations over the fake SDK equal the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec, FlatBlocks, HeadNorms
from tgi_core.errors import StartupError
from tgi_core.reference import ReferenceKernels
from tgi_core.reference.padded import PaddedKernels
from tgi_gaudi.kernels import GaudiKernels

HPU = torch.device("hpu", 0)
BLOCK_SIZE = 16
SPEC = AttentionSpec(num_heads=6, num_kv_heads=2, head_dim=16, scale=0.25)
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


@pytest.fixture
def kernels(card: Any) -> GaudiKernels:
    return GaudiKernels()


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def to_card(value: Any) -> Any:
    """Tensors of a tuple, whatever else it holds, on the card."""
    if isinstance(value, Tensor):
        return value.to(HPU)
    if isinstance(value, tuple):
        items = [to_card(one) for one in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.cpu(), expected, rtol=TOLERANCES[expected.dtype], atol=TOLERANCES[expected.dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("shape", "offset"), [((5, 16), 0.0), ((5, 3, 16), 0.0), ((5, 16), 1.0)])
def test_rms_norm(kernels: GaudiKernels, dtype: torch.dtype, shape: tuple[int, ...], offset: float) -> None:
    x, weight = normal(*shape, dtype=dtype), normal(16, dtype=dtype)
    expected = ReferenceKernels().rms_norm(x, weight, 1e-5, offset)
    assert_equal(kernels.rms_norm(x.to(HPU), weight.to(HPU), 1e-5, offset), expected)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("rotary_dim", [16, 8])
def test_rope(kernels: GaudiKernels, dtype: torch.dtype, rotary_dim: int) -> None:
    x_THD, angles_TR = normal(5, 3, 16, dtype=dtype), normal(5, rotary_dim // 2)
    tables = angles_TR.cos(), angles_TR.sin()
    assert_equal(kernels.rope(x_THD.to(HPU), *to_card(tables)), ReferenceKernels().rope(x_THD, *tables))


@pytest.mark.parametrize("normed", [False, True])
def test_keys_and_values_are_written(kernels: GaudiKernels, normed: bool) -> None:
    width = (SPEC.num_heads + 2 * SPEC.num_kv_heads) * SPEC.head_dim
    qkv_TX, cache_NP2KD = normal(3, width), normal(*SPEC.cache_shape(4, BLOCK_SIZE))
    angles_TR = normal(3, 8)
    rotary, mapping_T = (angles_TR.cos(), angles_TR.sin()), torch.tensor([17, 63, 0])
    norms = HeadNorms(normal(16), normal(16, seed=1), 1e-6, 0.0)
    results = []
    for operations, place in ((kernels, to_card), (ReferenceKernels(), lambda value: value)):
        cache = place(cache_NP2KD.clone())
        arguments = (place(qkv_TX.clone()), SPEC, place(rotary), cache, place(mapping_T))
        if normed:
            q_THD = operations.norm_rope_write_kv(*arguments, norms=HeadNorms(*map(place, norms)))
        else:
            q_THD = operations.rope_write_kv(*arguments)
        results.append((q_THD, cache))
    for actual, expected in zip(*results, strict=True):
        assert_equal(actual, expected)


def make_batch(q_len: int, kv_lens: list[int], window: int | None) -> tuple[AttentionBatch, int]:
    """Rows of one length over blocks that lie anywhere, and how many blocks there are."""
    columns = max(-(-kv_len // BLOCK_SIZE) for kv_len in kv_lens)
    num_blocks = len(kv_lens) * columns + 1
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(3))
    tables_BM = order[: len(kv_lens) * columns].view(len(kv_lens), columns).int()
    for row, kv_len in enumerate(kv_lens):
        # Nobody looks there.
        tables_BM[row, -(-kv_len // BLOCK_SIZE) :] = 1 << 20
    batch = AttentionBatch(
        q_lens=[q_len] * len(kv_lens),
        kv_lens=kv_lens,
        num_decodes=len(kv_lens) if q_len == 1 else 0,
        q_starts_B=torch.arange(len(kv_lens) + 1) * q_len,
        kv_lens_B=torch.tensor(kv_lens, dtype=torch.int32),
        block_tables_BM=tables_BM,
        slot_mapping_T=torch.zeros(q_len * len(kv_lens), dtype=torch.int64),
        block_size=BLOCK_SIZE,
        window=window,
    )
    return batch, num_blocks


@pytest.mark.parametrize("parameters", [11, 13, 15])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("window", [None, 5])
def test_prompts_through_every_release_of_the_fused_attention(
    card: Any, monkeypatch: pytest.MonkeyPatch, parameters: int, dtype: torch.dtype, window: int | None
) -> None:
    import habana_frameworks.torch.hpex.kernels as hpex

    monkeypatch.setattr(hpex, "FusedSDPA", hpex._release_of(parameters))
    calls = []
    monkeypatch.setattr(hpex, "_attend", lambda *arguments, attend=hpex._attend: calls.append(0) or attend(*arguments))
    spec = replace(SPEC, window=window)
    batch, num_blocks = make_batch(7, [7, 40, 16, 33], window)
    q_THD = normal(28, spec.num_heads, spec.head_dim, dtype=dtype)
    cache_NP2KD = normal(*spec.cache_shape(num_blocks, BLOCK_SIZE), dtype=dtype)
    expected = ReferenceKernels().attention(q_THD, cache_NP2KD, batch, spec)
    assert_equal(GaudiKernels().attention(q_THD.to(HPU), cache_NP2KD.to(HPU), to_card(batch), spec), expected)
    assert calls == [0]


def test_another_number_of_arguments_is_refused(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import habana_frameworks.torch.hpex.kernels as hpex

    class Later(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *q_k_v: Tensor) -> Tensor:
            return q_k_v[0]

    monkeypatch.setattr(hpex, "FusedSDPA", Later)
    with pytest.raises(StartupError, match="takes 1 arguments"):
        GaudiKernels()


def flat(batch: AttentionBatch, num_blocks: int, padding: int) -> AttentionBatch:
    """The batch as a flat decode; what pads the list is the last block."""
    blocks, owners, starts = [], [], []
    for row, kv_len in enumerate(batch.kv_lens):
        first = 0 if batch.window is None else max(0, kv_len - batch.window) // BLOCK_SIZE
        for column in range(first, -(-kv_len // BLOCK_SIZE)):
            blocks.append(int(batch.block_tables_BM[row, column]))
            owners.append(row)
            starts.append(column * BLOCK_SIZE)
    listed = FlatBlocks(
        torch.tensor([*blocks, *[num_blocks - 1] * padding], dtype=torch.int32),
        torch.tensor([*owners, *[len(batch.kv_lens)] * padding]),
        torch.tensor([*starts, *[0] * padding]),
    )
    return batch._replace(flat=listed)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("window", [None, 5, 16])
@pytest.mark.parametrize("padding", [0, 3])
def test_flat_decodes(kernels: GaudiKernels, dtype: torch.dtype, window: int | None, padding: int) -> None:
    spec = replace(SPEC, window=window)
    batch, num_blocks = make_batch(1, [1, 40, 16, 17, 64], window)
    q_BHD = normal(5, spec.num_heads, spec.head_dim, dtype=dtype)
    cache_NP2KD = normal(*spec.cache_shape(num_blocks, BLOCK_SIZE), dtype=dtype)
    expected = ReferenceKernels().attention(q_BHD, cache_NP2KD, batch, spec)
    actual = kernels.attention(q_BHD.to(HPU), cache_NP2KD.to(HPU), to_card(flat(batch, num_blocks, padding)), spec)
    assert_equal(actual, expected)


@pytest.mark.parametrize("q_len", [1, 3])
def test_what_the_fused_forms_lack_is_left_to_the_reference(kernels: GaudiKernels, q_len: int) -> None:
    spec = replace(SPEC, soft_cap=2.0, alibi_slopes=(0.5,) * 6)
    batch, num_blocks = make_batch(q_len, [20, 40], None)
    q_THD = normal(2 * q_len, spec.num_heads, spec.head_dim)
    cache_NP2KD = normal(*spec.cache_shape(num_blocks, BLOCK_SIZE))
    expected = PaddedKernels().attention(q_THD, cache_NP2KD, batch, spec)
    for asked in (batch, flat(batch, num_blocks, 2)) if q_len == 1 else (batch,):
        actual = kernels.attention(q_THD.to(HPU), cache_NP2KD.to(HPU), to_card(asked), spec)
        assert_equal(actual, expected)


def test_tables_advance(kernels: GaudiKernels) -> None:
    tokens_SL, lengths_S = torch.zeros(4, 8, dtype=torch.int32), torch.tensor([3, 5, 2, 1], dtype=torch.int32)
    slots_B, ids_B = torch.tensor([1, 3, 0, 3]), torch.tensor([10, 11, 12, 11])
    results = []
    for operations, place in ((kernels, to_card), (ReferenceKernels(), lambda value: value)):
        tables = place(tokens_SL.clone()), place(lengths_S.clone())
        operations.advance_tables(*tables, place(slots_B), place(ids_B))
        results.append(tables)
    for actual, expected in zip(*results, strict=True):
        assert actual.tolist() == expected.tolist()
