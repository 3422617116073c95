"""Reading tiles of keys and values through a block table."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def load_tile(
    cache_ptr,
    cache_descriptor,
    table_ptr,
    tile,
    kv_len,
    kv_head,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
):
    """Keys and values [TILE, BLOCK_D] of one head at positions ``tile * TILE`` on.

    Past ``kv_len`` there are zeros or stale, finite entries; without MASKED all positions lie before it. DESCRIPTOR
    lets the copy engine fetch the tile, which must lie within one block.
    """
    token_size: tl.constexpr = 2 * NUM_KV_HEADS * HEAD_DIM
    first = tile * TILE
    if DESCRIPTOR:
        entry = tl.load(table_ptr + first // BLOCK_SIZE) * BLOCK_SIZE + first % BLOCK_SIZE
        keys = cache_descriptor.load([entry, kv_head * HEAD_DIM])
        values = cache_descriptor.load([entry, (NUM_KV_HEADS + kv_head) * HEAD_DIM])
    else:
        columns = tl.arange(0, BLOCK_D)
        offsets = tl.arange(0, TILE)
        if BLOCK_SIZE % TILE == 0:
            block = tl.load(table_ptr + first // BLOCK_SIZE).to(tl.int64)
            tile_ptr = cache_ptr + (block * BLOCK_SIZE + first % BLOCK_SIZE) * token_size + kv_head * HEAD_DIM
            entry_ptrs = tile_ptr + offsets[:, None] * token_size + columns[None, :]
        else:
            positions = first + offsets
            blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=positions < kv_len, other=0).to(tl.int64)
            entries = (blocks * BLOCK_SIZE + positions % BLOCK_SIZE) * token_size + kv_head * HEAD_DIM
            entry_ptrs = cache_ptr + entries[:, None] + columns[None, :]
        value_ptrs = entry_ptrs + NUM_KV_HEADS * HEAD_DIM
        if MASKED:
            inside = (first + offsets < kv_len)[:, None] & (columns < HEAD_DIM)[None, :]
            keys = tl.load(entry_ptrs, mask=inside, other=0.0)
            values = tl.load(value_ptrs, mask=inside, other=0.0)
        elif BLOCK_D == HEAD_DIM:
            keys = tl.load(entry_ptrs)
            values = tl.load(value_ptrs)
        else:
            inside = (columns < HEAD_DIM)[None, :]
            keys = tl.load(entry_ptrs, mask=inside, other=0.0)
            values = tl.load(value_ptrs, mask=inside, other=0.0)
    return keys, values


def cache_descriptor(cache_NP2KD: Tensor, tile: int, *, wanted: bool) -> tuple[Any, bool]:
    """(descriptor, whether there is one) for tiles of ``tile`` tokens; without one the first is a stand-in."""
    _, block_size, _, kv_heads, head_dim = cache_NP2KD.shape
    if not wanted or block_size % tile or head_dim & (head_dim - 1):
        return cache_NP2KD, False
    from triton.tools.tensor_descriptor import TensorDescriptor

    rows = cache_NP2KD.view(-1, 2 * kv_heads * head_dim)
    return TensorDescriptor.from_tensor(rows, [tile, head_dim]), True
