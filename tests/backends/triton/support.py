"""What the kernel tests share: tunings, tolerances and ragged batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec
from tgi_triton.expert_tiles import ExpertTiles, ProductTile
from tgi_triton.tuning import Tuning


def _expert_tiles(*, descriptors: bool) -> tuple[ExpertTiles, ...]:
    single = ProductTile(outputs=2, block_bytes=64)
    few = ProductTile(outputs=16, block_bytes=64, weights_left=True, descriptors=descriptors)
    many = ProductTile(outputs=32, block_bytes=64, group=2, descriptors=descriptors)
    return (
        ExpertTiles(most_pairs=0.25, rows=1, up=single, down=single),
        ExpertTiles(most_pairs=10, rows=16, up=few, down=few),
        ExpertTiles(most_pairs=math.inf, rows=32, up=many, down=many),
    )


SMALL = Tuning(
    latent_heads=16,
    programs=8,
    decode_tile_bytes=1024,
    prefill_rows=16,
    prefill_tile_bytes=1024,
    gemv=True,
    gemv_tile=64,
    expert_tiles=_expert_tiles(descriptors=False),
)
DESCRIPTORS = Tuning(
    programs=8,
    decode_tile_bytes=1024,
    decode_descriptors=True,
    prefill_rows=16,
    prefill_tile_bytes=1024,
    prefill_descriptors=True,
    expert_tiles=_expert_tiles(descriptors=True),
)

_TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Equal to a few roundings of the type."""
    tolerance = _TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def random(generator: torch.Generator, *shape: int, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=generator).to(dtype)


class Step(NamedTuple):
    """A ragged step over a random cache."""

    q_THD: Tensor
    qkv_TX: Tensor
    cache_NP2KD: Tensor
    batch: AttentionBatch


def make_step(
    spec: AttentionSpec,
    lengths: Sequence[tuple[int, int]],
    *,
    block_size: int,
    dtype: torch.dtype,
    seed: int = 0,
) -> Step:
    """Rows of (q_len, kv_len), decodes first, whose blocks lie anywhere; columns past a row's blocks point nowhere."""
    generator = torch.Generator().manual_seed(seed)
    q_lens, kv_lens = [q_len for q_len, _ in lengths], [kv_len for _, kv_len in lengths]
    columns = -(-max(kv_lens) // block_size) + 1
    num_blocks = sum(-(-kv_len // block_size) for kv_len in kv_lens) + 1
    blocks = iter(torch.randperm(num_blocks - 1, generator=generator).tolist())
    tables_BM = torch.full((len(lengths), columns), 1 << 20, dtype=torch.int32)
    for row, kv_len in enumerate(kv_lens):
        for column in range(-(-kv_len // block_size)):
            tables_BM[row, column] = next(blocks)
    num_tokens = sum(q_lens)
    num_decodes = next((row for row, q_len in enumerate(q_lens) if q_len > 1), len(q_lens))
    heads, kv_heads, size = spec.num_heads, spec.num_kv_heads, spec.head_dim
    batch = AttentionBatch(
        q_lens=q_lens,
        kv_lens=kv_lens,
        num_decodes=num_decodes,
        q_starts_B=torch.tensor([0, *q_lens]).cumsum(0),
        kv_lens_B=torch.tensor(kv_lens, dtype=torch.int32),
        block_tables_BM=tables_BM,
        slot_mapping_T=torch.randperm(num_blocks * block_size, generator=generator)[:num_tokens],
        block_size=block_size,
        window=spec.window,
    )
    return Step(
        random(generator, num_tokens, heads, size, dtype=dtype),
        random(generator, num_tokens, (heads + 2 * kv_heads) * size, dtype=dtype),
        random(generator, num_blocks, block_size, 2, kv_heads, size, dtype=dtype),
        batch,
    )


def attention_spec(
    heads: int, kv_heads: int, size: int, window: int | None = None, soft_cap: float | None = None
) -> AttentionSpec:
    """A spec with the usual scale."""
    return AttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=size,
        scale=size**-0.5,
        window=window,
        soft_cap=soft_cap,
    )
