"""Reading and writing the slot tables: what a decode step computes, and its new tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.contract import DecodeInputs, DeviceState
from tgi_triton.device_code import gdc_launch_dependents, gdc_wait, launch_options

_COLUMNS = 512
_ROWS = 128


@triton.jit
def _decode_inputs_kernel(
    slots_ptr,
    tokens_ptr,
    lengths_ptr,
    table_ptr,
    ids_ptr,
    positions_ptr,
    kv_lens_ptr,
    row_table_ptr,
    slot_mapping_ptr,
    tokens_stride,
    table_stride,
    BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row)
    length = tl.load(lengths_ptr + slot)
    position = length - 1
    tl.store(ids_ptr + row, tl.load(tokens_ptr + slot * tokens_stride + position))
    tl.store(positions_ptr + row, position.to(tl.int64))
    tl.store(kv_lens_ptr + row, length)
    block = tl.load(table_ptr + slot * table_stride + position // BLOCK_SIZE).to(tl.int64)
    tl.store(slot_mapping_ptr + row, block * BLOCK_SIZE + position % BLOCK_SIZE)
    num_columns = tl.cdiv(length, BLOCK_SIZE)
    for start in range(0, num_columns, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        blocks = tl.load(table_ptr + slot * table_stride + columns, mask=columns < num_columns, other=0)
        tl.store(row_table_ptr + row * table_stride + columns, blocks, mask=columns < num_columns)


@triton.jit(do_not_specialize=["num_rows"])
def _advance_kernel(
    tokens_ptr,
    lengths_ptr,
    slots_ptr,
    ids_ptr,
    num_rows,
    scratch_slot,
    tokens_stride,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slots = tl.load(slots_ptr + rows, mask=rows < num_rows, other=scratch_slot)
    inside = slots != scratch_slot
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    lengths = tl.load(lengths_ptr + slots, mask=inside, other=0)
    ids = tl.load(ids_ptr + rows, mask=inside, other=0).to(tl.int32)
    tl.store(tokens_ptr + slots * tokens_stride + lengths, ids, mask=inside)
    tl.store(lengths_ptr + slots, lengths + 1, mask=inside)


def decode_inputs(state: DeviceState, slots_B: Tensor) -> DecodeInputs:
    """See ``Kernels.decode_inputs``."""
    rows, device = len(slots_B), slots_B.device
    ids_B = torch.empty(rows, dtype=torch.int32, device=device)
    positions_B = torch.empty(rows, dtype=torch.int64, device=device)
    kv_lens_B = torch.empty(rows, dtype=torch.int32, device=device)
    tables, mappings = [], []
    for table_SM in state.block_tables:
        row_table_BM = torch.empty((rows, table_SM.shape[1]), dtype=torch.int32, device=device)
        slot_mapping_B = torch.empty(rows, dtype=torch.int64, device=device)
        # Every group's launch writes the same ids, positions and lengths: cheaper than a launch for them.
        _decode_inputs_kernel[(rows,)](
            slots_B,
            state.tokens_SL,
            state.lengths_S,
            table_SM,
            ids_B,
            positions_B,
            kv_lens_B,
            row_table_BM,
            slot_mapping_B,
            state.tokens_SL.stride(0),
            table_SM.stride(0),
            BLOCK_SIZE=state.kv[0].shape[1],
            COLUMNS=_COLUMNS,
            num_warps=4,
            **launch_options(False),
        )
        tables.append(row_table_BM)
        mappings.append(slot_mapping_B)
    return DecodeInputs(ids_B, positions_B, kv_lens_B, tuple(tables), tuple(mappings))


def advance_tables(tokens_SL: Tensor, lengths_S: Tensor, slots_B: Tensor, ids_B: Tensor, *, dependent: bool) -> None:
    """See ``Kernels.advance_tables``."""
    rows = len(slots_B)
    _advance_kernel[(triton.cdiv(rows, _ROWS),)](
        tokens_SL,
        lengths_S,
        slots_B,
        ids_B,
        rows,
        len(lengths_S) - 1,
        tokens_SL.stride(0),
        BLOCK=_ROWS,
        DEPENDENT=dependent,
        num_warps=1,
        **launch_options(dependent),
    )
