"""Attention over the paged cache through torch's fused CPU kernel.

Bitwise reproducibility, which the CPU promises in bfloat16, hangs on one rule: keys always enter the kernel gathered
from the cache, padded to whole blocks and starting at a multiple of the kernel's own key tile, and the queries are padded
to a multiple of four, since fewer are multiplied by other code. What lies outside a query's sight is masked. Then neither
the other rows of a batch, nor the way a prompt was cut into chunks, nor the distance a window has moved changes the order
of a sum.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec

_KEY_TILE = 512
"""Keys that torch's kernel takes at a time; sums inside a tile do not depend on other tiles."""

_QUERY_MULTIPLE = 4
"""Queries of a key head are padded to a multiple of it; torch's kernel cuts them into tiles of 32 and more."""

_PREFILL_QUERIES = 128
"""Queries of one call: bounds the mask and skips most of what causality hides."""

_DECODE_KEYS = 1 << 15
"""Keys that one call of a decode batch gathers at most (one row always fits)."""


class DecodePiece(NamedTuple):
    """Decode rows of similar length.

    Attributes:
        rows_B: int64, their places in the batch; None where they are all of it, in order.
        blocks_X: int32, their blocks, padded to the same number, one row after the other.
        mask_B11C: float32, 0 where a row may look and -inf elsewhere.
    """

    rows_B: Tensor | None
    blocks_X: Tensor
    mask_B11C: Tensor


class PrefillPiece(NamedTuple):
    """Some queries of one row: tokens ``start`` to ``end`` look at the row's gathered keys ``first`` to ``last``.

    ``mask_QC`` is float32, 0 where a query may look and -inf elsewhere; it has rows for the padding queries too.
    """

    start: int
    end: int
    first: int
    last: int
    mask_QC: Tensor


class PrefillRow(NamedTuple):
    """One row's blocks, int32, and the pieces of its queries."""

    blocks_X: Tensor
    pieces: tuple[PrefillPiece, ...]


class Prepared(NamedTuple):
    """A step's work for one KV group."""

    decodes: tuple[DecodePiece, ...]
    prefills: tuple[PrefillRow, ...]


def prepare(batch: AttentionBatch) -> Prepared:
    """Masks and block lists that all layers of the group share."""
    prefills = []
    start = batch.num_decodes
    for row in range(batch.num_decodes, len(batch.q_lens)):
        prefills.append(_prefill_row(batch, row, start))
        start += batch.q_lens[row]
    return Prepared(_decode_pieces(batch), tuple(prefills))


def attend(q_THD: Tensor, cache_NP2KD: Tensor, prepared: Prepared, spec: AttentionSpec) -> Tensor:
    """Attention of a prepared batch; see ``Kernels.attention``."""
    decodes, prefills = prepared
    if not prefills and len(decodes) == 1 and decodes[0].rows_B is None:
        return _decode(q_THD, cache_NP2KD, decodes[0], spec)
    output_THD = torch.empty_like(q_THD)
    for piece in decodes:
        if piece.rows_B is None:
            rows = slice(0, len(piece.mask_B11C))
            output_THD[rows] = _decode(q_THD[rows], cache_NP2KD, piece, spec)
        else:
            output_BHD = _decode(q_THD.index_select(0, piece.rows_B), cache_NP2KD, piece, spec)
            output_THD.index_copy_(0, piece.rows_B, output_BHD)
    for row in prefills:
        _prefill(q_THD, cache_NP2KD, row, spec, output_THD)
    return output_THD


def _decode_pieces(batch: AttentionBatch) -> tuple[DecodePiece, ...]:
    if not batch.num_decodes:
        return ()
    firsts = [_first_block(batch, row) for row in range(batch.num_decodes)]
    counts = [
        -(-kv_len // batch.block_size) - first
        for kv_len, first in zip(batch.kv_lens[: batch.num_decodes], firsts, strict=True)
    ]
    pieces = _by_length(counts, _DECODE_KEYS // batch.block_size)
    return tuple(_decode_piece(batch, rows, firsts, max(counts[row] for row in rows)) for rows in pieces)


def _by_length(counts: list[int], max_blocks: int) -> list[list[int]]:
    """Split rows so that padding at most doubles a row's blocks and a piece gathers at most ``max_blocks``."""
    shortest, longest = min(counts), max(counts)
    if longest <= 2 * shortest and longest * len(counts) <= max_blocks:
        return [list(range(len(counts)))]
    pieces: list[list[int]] = []
    limit = 0
    for row in sorted(range(len(counts)), key=lambda row: -counts[row]):
        if not pieces or 2 * counts[row] < limit or limit * (len(pieces[-1]) + 1) > max_blocks:
            pieces.append([])
            limit = counts[row]
        pieces[-1].append(row)
    return pieces


def _decode_piece(batch: AttentionBatch, rows: list[int], firsts: list[int], num_blocks: int) -> DecodePiece:
    size = batch.block_size
    if len(rows) == batch.num_decodes and rows == list(range(len(rows))):
        rows_B = None
        table_BM, kv_lens_B1 = batch.block_tables_BM[: len(rows)], batch.kv_lens_B[: len(rows), None]
    else:
        rows_B = torch.tensor(rows)
        table_BM, kv_lens_B1 = batch.block_tables_BM[rows_B], batch.kv_lens_B[rows_B, None]
    positions_BC = torch.arange(num_blocks * size, dtype=torch.int32)
    if batch.window is None:
        blocks_BX = table_BM[:, :num_blocks]
        hidden_BC = positions_BC >= kv_lens_B1
    else:
        firsts_B1 = torch.tensor([firsts[row] for row in rows], dtype=torch.int32)[:, None]
        positions_BC = positions_BC + firsts_B1 * size
        hidden_BC = (positions_BC >= kv_lens_B1) | (positions_BC < kv_lens_B1 - batch.window)
        blocks_BX = _blocks_in_window(table_BM, firsts_B1, num_blocks, kv_lens_B1, batch)
    mask_BC = torch.zeros(hidden_BC.shape).masked_fill_(hidden_BC, float("-inf"))
    return DecodePiece(rows_B, blocks_BX.reshape(-1), mask_BC[:, None, None])


def _prefill_row(batch: AttentionBatch, row: int, start: int) -> PrefillRow:
    size, window = batch.block_size, batch.window
    q_len, kv_len = batch.q_lens[row], batch.kv_lens[row]
    first_block = _first_block(batch, row)
    num_blocks = -(-kv_len // size) - first_block
    table_1M = batch.block_tables_BM[row : row + 1]
    if window is None:
        blocks_X = table_1M[0, :num_blocks]
    else:
        first_11, kv_len_11 = torch.tensor([[first_block]]), torch.tensor([[kv_len]])
        visible_11 = (kv_len_11 - q_len + 1 - window).clamp(min=0) // size
        columns_1X = first_11 + torch.arange(num_blocks)
        blocks_X = table_1M.gather(1, columns_1X.clamp(min=visible_11)).flatten()
    pieces = []
    for begin in range(0, q_len, _PREFILL_QUERIES):
        end = min(begin + _PREFILL_QUERIES, q_len)
        shift = kv_len - q_len - first_block * size
        first = 0 if window is None else _tile_of(shift + begin - window + 1)
        last = -(-(shift + end) // size) * size
        padded_end = begin + -(-(end - begin) // _QUERY_MULTIPLE) * _QUERY_MULTIPLE
        # A padding query sees what the last one sees: a row without any key would be NaN.
        queries_Q1 = torch.arange(shift + begin, shift + padded_end).clamp(max=shift + end - 1)[:, None]
        keys_C = torch.arange(first, last)
        hidden_QC = keys_C > queries_Q1
        if window is not None:
            hidden_QC |= keys_C <= queries_Q1 - window
        mask_QC = torch.zeros(hidden_QC.shape).masked_fill_(hidden_QC, float("-inf"))
        pieces.append(PrefillPiece(start + begin, start + end, first, last, mask_QC))
    return PrefillRow(blocks_X, tuple(pieces))


def _first_block(batch: AttentionBatch, row: int) -> int:
    """The first block to gather: that of the key tile in which the row's first query begins to see."""
    if batch.window is None:
        return 0
    first_query = batch.kv_lens[row] - batch.q_lens[row]
    return _tile_of(first_query - batch.window + 1) // batch.block_size


def _tile_of(position: int) -> int:
    return max(0, position) // _KEY_TILE * _KEY_TILE


def _blocks_in_window(
    table_BM: Tensor, firsts_B1: Tensor, num_blocks: int, kv_lens_B1: Tensor, batch: AttentionBatch
) -> Tensor:
    """Decode rows' blocks from each one's first on. The table is stale outside a window: there the nearest block inside
    stands in, and the mask hides it."""
    assert batch.window is not None
    visible_B1 = (kv_lens_B1 - batch.window).clamp(min=0) // batch.block_size
    last_B1 = (kv_lens_B1 - 1) // batch.block_size
    columns_BX = firsts_B1 + torch.arange(num_blocks, dtype=torch.int32)
    return table_BM.gather(1, columns_BX.clamp(min=visible_B1, max=last_B1).long())


def _decode(q_BHD: Tensor, cache_NP2KD: Tensor, piece: DecodePiece, spec: AttentionSpec) -> Tensor:
    rows, kv_heads, size = len(q_BHD), spec.num_kv_heads, spec.head_dim
    kv_BC2KD = cache_NP2KD.index_select(0, piece.blocks_X).view(rows, -1, 2, kv_heads, size)
    # The query heads of a key head take the place of a query length: torch's own grouping would copy the keys.
    q_BKGD = q_BHD.view(rows, kv_heads, -1, size)
    groups = q_BKGD.shape[2]
    q_BKGD = F.pad(q_BKGD, (0, 0, 0, -groups % _QUERY_MULTIPLE)) if groups % _QUERY_MULTIPLE else q_BKGD
    keys_BKCD, values_BKCD = kv_BC2KD[:, :, 0].transpose(1, 2), kv_BC2KD[:, :, 1].transpose(1, 2)
    output_BKGD = F.scaled_dot_product_attention(
        q_BKGD, keys_BKCD, values_BKCD, attn_mask=piece.mask_B11C, scale=spec.scale
    )
    return output_BKGD[:, :, :groups].reshape(rows, spec.num_heads, size)


def _prefill(q_THD: Tensor, cache_NP2KD: Tensor, row: PrefillRow, spec: AttentionSpec, output_THD: Tensor) -> None:
    kv_heads, groups = spec.num_kv_heads, spec.num_heads // spec.num_kv_heads
    kv_C2KD = cache_NP2KD.index_select(0, row.blocks_X).flatten(0, 1)
    keys_K1CD, values_K1CD = kv_C2KD[:, 0].transpose(0, 1)[:, None], kv_C2KD[:, 1].transpose(0, 1)[:, None]
    for piece in row.pieces:
        # Key heads are the kernel's batch and the query heads of each its heads: expanding copies nothing.
        shape = (piece.end - piece.start, kv_heads, groups, spec.head_dim)
        q_QKGD = q_THD[piece.start : piece.end].view(shape)
        padding = len(piece.mask_QC) - len(q_QKGD)
        q_QKGD = F.pad(q_QKGD, (0, 0, 0, 0, 0, 0, 0, padding)) if padding else q_QKGD
        output_KGQD = F.scaled_dot_product_attention(
            q_QKGD.permute(1, 2, 0, 3),
            keys_K1CD[:, :, piece.first : piece.last].expand(-1, groups, -1, -1),
            values_K1CD[:, :, piece.first : piece.last].expand(-1, groups, -1, -1),
            attn_mask=piece.mask_QC,
            scale=spec.scale,
        )
        output_THD[piece.start : piece.end].view(shape).copy_(output_KGQD.permute(2, 0, 1, 3)[: shape[0]])
