"""Cases of what reads and writes the device tables."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from tgi_core.contract import DeviceState, Kernels
from tgi_core.sampling.rules import RuleSet
from tgi_core.shards.tables import make_state
from tgi_core.testing.conformance.cases.case import Bench, Case, Outputs, Scope

_SLOTS, _TOKENS = 9, 150
_ROWS = {
    "one slot": [3],
    "several slots out of order": [7, 0, 4, 2],
    "slots that pad the step": [5, 1, _SLOTS, _SLOTS],
}


def decode_inputs(scope: Scope) -> Iterator[Case]:
    """Slots whose last tokens lie around blocks' borders; scratch slots."""
    for block_size in scope.block_sizes:
        for groups in (1, 2):
            for label, slots in _ROWS.items():
                run = partial(_decode_inputs, block_size=block_size, groups=groups, slots=slots)
                text = f"blocks of {block_size}, {groups} KV group{'s' if groups > 1 else ''}, {label}"
                yield Case("decode_inputs", text, run, captured=True)


def _decode_inputs(kernels: Kernels, bench: Bench, *, block_size: int, groups: int, slots: list[int]) -> Outputs:
    state = _make_state(bench, block_size, groups)
    inputs = kernels.decode_inputs(state, bench.tensor(slots, torch.int64))
    outputs = {"ids": inputs.ids_B, "positions": inputs.positions_B, "kv_lens": inputs.kv_lens_B}
    lengths = state.lengths_S[slots].tolist()
    for group in range(groups):
        outputs[f"slot mapping of group {group}"] = inputs.slot_mappings[group]
        for row, length in enumerate(lengths):
            # What stands behind a row's end may be anything.
            blocks_M = inputs.block_tables[group][row, : -(-length // block_size)]
            outputs[f"blocks of row {row} in group {group}"] = blocks_M
    return outputs


def advance_tables(scope: Scope) -> Iterator[Case]:  # noqa: ARG001 - it has no shapes to choose from
    """One token a row; scratch slots keep their one token."""
    for label, slots in _ROWS.items():
        yield Case("advance_tables", label, partial(_advance_tables, slots=slots), captured=True)


def _advance_tables(kernels: Kernels, bench: Bench, *, slots: list[int]) -> Outputs:
    state = _make_state(bench, 16, 1)
    ids_B = bench.integers(0, 1000, len(slots))
    kernels.advance_tables(state.tokens_SL, state.lengths_S, bench.tensor(slots, torch.int64), ids_B)
    # The scratch slot's tokens mean nothing.
    return {"tokens": state.tokens_SL[:-1], "lengths": state.lengths_S}


def apply_bitmask(scope: Scope) -> Iterator[Case]:
    """A vocabulary that fills its last word and one that does not; some rows, all, none."""
    for vocab_size in (64, 1000) if scope.quick else (31, 32, 33, 64, 1000, 5003):
        for label, rows in (("one row", [2]), ("some rows", [3, 0]), ("all rows", [0, 1, 2, 3]), ("no row", [])):
            run = partial(_apply_bitmask, vocab_size=vocab_size, rows=rows)
            yield Case("apply_bitmask", f"{vocab_size} tokens, {label}", run)


def _apply_bitmask(kernels: Kernels, bench: Bench, *, vocab_size: int, rows: list[int]) -> Outputs:
    logits_BV = bench.normal(4, vocab_size)
    words = -(-vocab_size // 32)
    masks_RW = bench.integers(-(1 << 31), 1 << 31, len(rows), words, dtype=torch.int32)
    return {"logits": kernels.apply_bitmask(logits_BV, bench.tensor(rows, torch.int64), masks_RW)}


def _make_state(bench: Bench, block_size: int, groups: int) -> DeviceState:
    """Tables full of what others have left, with lengths around the borders of blocks."""
    columns = -(-_TOKENS // block_size)
    caches = [torch.zeros(1, block_size, 2, 1, 8, dtype=bench.dtype, device=bench.device)] * groups
    state = make_state(_SLOTS, _TOKENS, columns, groups, caches, rules=RuleSet([]), states=(), device=bench.device)
    state.tokens_SL.copy_(bench.integers(0, 1000, _SLOTS + 1, _TOKENS, dtype=torch.int32))
    # One token more must fit.
    lengths = [1, block_size - 1, block_size, block_size + 1, 2 * block_size, 5, 17, 33, 2]
    lengths_S = bench.tensor([min(length, _TOKENS - 1) for length in lengths] + [1], torch.int32)
    state.lengths_S.copy_(lengths_S)
    for table_SM in state.block_tables:
        table_SM.copy_(_blocks(bench, columns))
    return state


def _blocks(bench: Bench, columns: int) -> Tensor:
    return bench.permutation((_SLOTS + 1) * columns).view(_SLOTS + 1, columns).int().to(bench.device)
