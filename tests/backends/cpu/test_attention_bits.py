"""The attention kernel's promise by itself, on enough numbers to see a changed order of a sum.

A different order changes few results, since most of them round to the same bfloat16: about one in twenty thousand.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec
from tgi_cpu.kernels import CpuKernels

BLOCK, ROWS, SPAN = 16, 12, 1200
SPEC = AttentionSpec(num_heads=24, num_kv_heads=8, head_dim=64, scale=0.125)


class Rows:
    """Requests in one cache, each with queries for its last positions."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        columns = SPAN // BLOCK
        self.tables = torch.randperm(ROWS * columns, generator=generator).view(ROWS, columns).int()
        shape = (ROWS * columns, BLOCK, 2, SPEC.num_kv_heads, SPEC.head_dim)
        self.cache = torch.randn(shape, generator=generator).bfloat16()
        self.queries = torch.randn(ROWS, 8, SPEC.num_heads, SPEC.head_dim, generator=generator).bfloat16()

    def attend(self, rows: list[int], q_lens: list[int], kv_lens: list[int]) -> list[Tensor]:
        """Each row's output; a row's queries are the last ``q_len`` of its own."""
        batch = AttentionBatch(
            q_lens=q_lens,
            kv_lens=kv_lens,
            num_decodes=len(rows) if max(q_lens) == 1 else 0,
            q_starts_B=torch.tensor([0, *q_lens]).cumsum(0),
            kv_lens_B=torch.tensor(kv_lens, dtype=torch.int32),
            block_tables_BM=self.tables[rows, : -(-max(kv_lens) // BLOCK)],
            slot_mapping_T=torch.empty(0, dtype=torch.int64),
            block_size=BLOCK,
            window=None,
        )
        q_THD = torch.cat([self.queries[row, 8 - q_len :] for row, q_len in zip(rows, q_lens, strict=True)])
        kernels = CpuKernels()
        output_THD = kernels.attention(q_THD, self.cache, kernels.prepare_attention(batch, SPEC), SPEC)
        return list(output_THD.split(q_lens))  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def requests() -> Rows:
    return Rows()


@pytest.mark.parametrize("kv_len", [40, 170, 193, 200, 250, 300, 383, 390, 500, 600, 720])
def test_neighbours_chunks_and_decodes_agree(requests: Rows, kv_len: int) -> None:
    alone = torch.cat([requests.attend([row], [1], [kv_len])[0] for row in range(ROWS)])
    together = torch.cat(requests.attend(list(range(ROWS)), [1] * ROWS, [kv_len] * ROWS))
    assert torch.equal(together, alone)

    # A longer neighbour pads everybody's keys further; the last row is that neighbour.
    longer = [kv_len] * (ROWS - 1) + [min(2 * kv_len, SPAN)]
    assert torch.equal(torch.cat(requests.attend(list(range(ROWS)), [1] * ROWS, longer))[:-1], alone[:-1])

    for q_len in (2, 7, 8):
        chunks = requests.attend(list(range(ROWS)), [q_len] * ROWS, [kv_len] * ROWS)
        assert torch.equal(torch.stack([chunk[-1] for chunk in chunks]), alone)
