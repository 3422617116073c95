"""Gathering a decode step from the slot tables and writing its tokens back, against the reference."""

from __future__ import annotations

import torch

from tgi_core.contract import DeviceState
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling.rules import RuleSet
from tgi_core.shards.tables import make_state
from tgi_triton import TritonKernels

REFERENCE = ReferenceKernels()
SLOTS = torch.tensor([1, 3, 0, 4, 4])
"""Slot 4 is the scratch row: padding names it more than once."""


def state() -> DeviceState:
    generator = torch.Generator().manual_seed(0)
    caches = [torch.zeros(10, 4, 2, 1, 4) for _ in range(2)]
    made = make_state(
        max_slots=4,
        max_total_tokens=24,
        blocks_per_slot=6,
        num_groups=2,
        caches=caches,
        states=[],
        rules=RuleSet([]),
        device=torch.device("cpu"),
    )
    made.tokens_SL.random_(0, 100, generator=generator)
    made.lengths_S.copy_(torch.tensor([3, 9, 0, 24, 1]))
    for table_SM in made.block_tables:
        table_SM.random_(0, 9, generator=generator)
    return made


def test_decode_inputs(kernels: TritonKernels) -> None:
    tables = state()
    actual, expected = kernels.decode_inputs(tables, SLOTS), REFERENCE.decode_inputs(tables, SLOTS)
    assert torch.equal(actual.ids_B, expected.ids_B)
    assert torch.equal(actual.positions_B, expected.positions_B)
    assert torch.equal(actual.kv_lens_B, expected.kv_lens_B)
    for group in range(2):
        assert torch.equal(actual.slot_mappings[group], expected.slot_mappings[group])
        for row, kv_len in enumerate(expected.kv_lens_B.tolist()):
            columns = -(-kv_len // 4)
            assert torch.equal(actual.block_tables[group][row, :columns], expected.block_tables[group][row, :columns])


def test_advance_tables(kernels: TritonKernels) -> None:
    tables, expected = state(), state()
    tables.lengths_S[3] = expected.lengths_S[3] = 23
    ids_B = torch.tensor([7, 8, 9, 1, 2])
    kernels.advance_tables(tables.tokens_SL, tables.lengths_S, SLOTS, ids_B)
    REFERENCE.advance_tables(expected.tokens_SL, expected.lengths_S, SLOTS, ids_B)
    assert torch.equal(tables.lengths_S, expected.lengths_S)
    assert tables.lengths_S.tolist() == [4, 10, 0, 24, 1]
    assert torch.equal(tables.tokens_SL[:-1], expected.tokens_SL[:-1])
