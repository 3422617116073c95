"""Attention over the paged cache through torch's fused CPU kernel.

The CPU promises in bfloat16 that a row's result does not depend, bit for bit, on the rest of the batch. The kernel
keeps that promise only for the right shapes, since the matrix products in it sum in an order that depends on the shape:

- Keys enter in tiles of ``_KEY_TILE``, always gathered from the cache, from a multiple of the tile on, and padded to
  whole blocks. A last tile of more than ``_ONE_SUM`` and less than ``_FIXED_SUMS`` keys would be cut in halves,
  wherever that is; it is padded to the latter, from where on sums are cut at fixed places.
- Queries are padded to a multiple of ``_QUERY_MULTIPLE``, since fewer are multiplied by other code.

What lies outside a query's sight is masked. Then neither the other rows of a batch, nor the way a prompt was cut into
chunks, nor the distance a window has moved changes the order of a sum.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec

_KEY_TILE = 512
"""Keys that torch's kernel takes at a time; sums inside a tile do not depend on other tiles."""

_ONE_SUM, _FIXED_SUMS = 192, 384
"""Keys of a tile that are summed in one go at most, and from how many on the cuts lie at fixed places."""

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
    size = batch.block_size
    firsts = [_first_block(batch, row) for row in range(batch.num_decodes)]
    counts = [
        _padded_keys(kv_len - first * size, size) // size
        for kv_len, first in zip(batch.kv_lens[: batch.num_decodes], firsts, strict=True)
    ]
    pieces = _by_length(counts, _DECODE_KEYS // size)
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
    rows_B = None if rows == list(range(batch.num_decodes)) else torch.tensor(rows)
    rows_or_all = slice(batch.num_decodes) if rows_B is None else rows_B
    table_BM, kv_lens_B1 = batch.block_tables_BM[rows_or_all], batch.kv_lens_B[rows_or_all, None]
    firsts_B1 = torch.tensor([[firsts[row]] for row in rows])
    positions_BC = torch.arange(num_blocks * size) + firsts_B1 * size
    hidden_BC = positions_BC >= kv_lens_B1
    visible_B1 = firsts_B1
    if batch.window is not None:
        hidden_BC |= positions_BC < kv_lens_B1 - batch.window
        visible_B1 = (kv_lens_B1 - batch.window).clamp(min=0) // size
    blocks_BX = _gathered_blocks(table_BM, firsts_B1, num_blocks, visible_B1, (kv_lens_B1 - 1) // size)
    return DecodePiece(rows_B, blocks_BX.flatten(), _mask(hidden_BC)[:, None, None])


def _prefill_row(batch: AttentionBatch, row: int, start: int) -> PrefillRow:
    size, window = batch.block_size, batch.window
    q_len, kv_len = batch.q_lens[row], batch.kv_lens[row]
    first_block = _first_block(batch, row)
    shift = kv_len - q_len - first_block * size
    pieces = []
    for begin in range(0, q_len, _PREFILL_QUERIES):
        end = min(begin + _PREFILL_QUERIES, q_len)
        first = 0 if window is None else _tile_of(shift + begin - window + 1)
        last = first + _padded_keys(shift + end - first, size)
        padded_end = begin + -(-(end - begin) // _QUERY_MULTIPLE) * _QUERY_MULTIPLE
        # A padding query sees what the last one sees: a row without any key would be NaN.
        queries_Q1 = torch.arange(shift + begin, shift + padded_end).clamp(max=shift + end - 1)[:, None]
        keys_C = torch.arange(first, last)
        hidden_QC = keys_C > queries_Q1
        if window is not None:
            hidden_QC |= keys_C <= queries_Q1 - window
        pieces.append(PrefillPiece(start + begin, start + end, first, last, _mask(hidden_QC)))
    visible = first_block if window is None else max(0, kv_len - q_len + 1 - window) // size
    columns = torch.tensor([[first_block], [visible], [(kv_len - 1) // size]])
    table_1M, num_blocks = batch.block_tables_BM[row : row + 1], max(piece.last for piece in pieces) // size
    blocks_1X = _gathered_blocks(table_1M, columns[:1], num_blocks, columns[1:2], columns[2:])
    return PrefillRow(blocks_1X.flatten(), tuple(pieces))


def _mask(hidden: Tensor) -> Tensor:
    """0 where ``hidden`` is false and -inf where it is true, float32."""
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))


def _first_block(batch: AttentionBatch, row: int) -> int:
    """The first block to gather: that of the key tile in which the row's first query begins to see."""
    if batch.window is None:
        return 0
    first_query = batch.kv_lens[row] - batch.q_lens[row]
    return _tile_of(first_query - batch.window + 1) // batch.block_size


def _tile_of(position: int) -> int:
    return max(0, position) // _KEY_TILE * _KEY_TILE


def _padded_keys(num_keys: int, block_size: int) -> int:
    """How many keys are gathered for ``num_keys`` that count from the start of a tile on."""
    tiles, rest = divmod(-(-num_keys // block_size) * block_size, _KEY_TILE)
    if _ONE_SUM < rest < _FIXED_SUMS:
        rest = _FIXED_SUMS
    return tiles * _KEY_TILE + rest


def _gathered_blocks(
    table_BM: Tensor, firsts_B1: Tensor, num_blocks: int, visible_B1: Tensor, last_B1: Tensor
) -> Tensor:
    """``num_blocks`` blocks of each row from column ``firsts`` on, int32 [B, X].

    The table is stale outside columns ``visible`` to ``last``, where other requests' blocks may stand. There the
    row's nearest own block stands in, and the mask hides it: nobody's numbers can reach another request.
    """
    columns_BX = firsts_B1 + torch.arange(num_blocks)
    return table_BM.gather(1, columns_BX.clamp(min=visible_B1, max=last_B1))


def _decode(q_BHD: Tensor, cache_NP2KD: Tensor, piece: DecodePiece, spec: AttentionSpec) -> Tensor:
    rows, kv_heads, size = len(q_BHD), spec.num_kv_heads, spec.head_dim
    kv_BC2KD = cache_NP2KD.index_select(0, piece.blocks_X).view(rows, -1, 2, kv_heads, size)
    # The query heads of a key head take the place of a query length: torch's own grouping would copy the keys.
    q_BKGD = q_BHD.view(rows, kv_heads, -1, size)
    groups = q_BKGD.shape[2]
    padding = -groups % _QUERY_MULTIPLE
    if groups == 1:
        q_BKGD = q_BKGD.expand(-1, -1, _QUERY_MULTIPLE, -1)
    elif padding:
        q_BKGD = torch.cat((q_BKGD, q_BKGD[:, :, :padding]), dim=2)
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
