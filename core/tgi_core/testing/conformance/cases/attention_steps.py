"""Steps of attention over the paged cache: random rows, as tables and, of decodes, as one list of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec, FlatBlocks, Kernels
from tgi_core.testing.conformance.cases.case import Bench, OracleKernels, Outputs

NO_BLOCK = 1 << 20
"""Stands in a block table where no block is; a device that reads it reads out of its cache."""

Rows = Sequence[tuple[int, int]]
"""(q_len, kv_len) of each row, decodes first."""


_PADDING = 2
"""Rows and blocks that pad a flat decode."""


def attention_spec(heads: int, kv_heads: int, size: int, window: int | None = None) -> AttentionSpec:
    """A spec with the usual scale."""
    return AttentionSpec(num_heads=heads, num_kv_heads=kv_heads, head_dim=size, scale=size**-0.5, window=window)


class Step(NamedTuple):
    """A ragged step over a random cache."""

    spec: AttentionSpec
    batch: AttentionBatch
    q_THD: Tensor
    cache_NP2KD: Tensor
    sinks_H: Tensor | None
    bias_HX: Tensor | None

    def as_if(self, spec: AttentionSpec) -> Step:
        """The same step with another attention."""
        return self._replace(spec=spec, batch=self.batch._replace(window=spec.window))


def make_step(bench: Bench, spec: AttentionSpec, rows: Rows, block_size: int) -> Step:
    """Rows whose blocks lie anywhere; what a table's columns past a row's end name does not exist."""
    q_lens, kv_lens = [q_len for q_len, _ in rows], [kv_len for _, kv_len in rows]
    counts = [-(-kv_len // block_size) for kv_len in kv_lens]
    # One block is nobody's, so that reading a block too far finds something.
    order = bench.permutation(sum(counts) + 1).tolist()
    tables = [[order.pop() for _ in range(count)] + [NO_BLOCK] * (max(counts) + 1 - count) for count in counts]
    batch = AttentionBatch(
        q_lens=q_lens,
        kv_lens=kv_lens,
        num_decodes=next((row for row, q_len in enumerate(q_lens) if q_len > 1), len(q_lens)),
        q_starts_B=bench.tensor([0, *accumulate(q_lens)], torch.int64),
        kv_lens_B=bench.tensor(kv_lens, torch.int32),
        block_tables_BM=bench.tensor(tables, torch.int32),
        slot_mapping_T=bench.tensor(_slot_mapping(rows, tables, block_size), torch.int64),
        block_size=block_size,
        window=spec.window,
    )
    heads = spec.num_heads
    return Step(
        spec,
        batch,
        bench.normal(sum(q_lens), heads, spec.head_dim),
        bench.normal(*spec.cache_shape(sum(counts) + 1, block_size)),
        bench.tensor([0.5 * head - 1 for head in range(heads)], bench.dtype) if spec.sinks else None,
        bench.normal(heads, spec.distances) if spec.distances is not None else None,
    )


def _slot_mapping(rows: Rows, tables: list[list[int]], block_size: int) -> list[int]:
    return [
        blocks[position // block_size] * block_size + position % block_size
        for (q_len, kv_len), blocks in zip(rows, tables, strict=True)
        for position in range(kv_len - q_len, kv_len)
    ]


def attend(kernels: Kernels, step: Step) -> Tensor:
    """Attention of the step."""
    prepared = kernels.prepare_attention(step.batch, step.spec)
    q_THD = step.q_THD.clone()
    sinks_H = step.sinks_H if step.spec.sinks else None
    bias_HX = step.bias_HX if step.spec.distances is not None else None
    if bias_HX is None:
        return kernels.attention(q_THD, step.cache_NP2KD, prepared, step.spec, sinks_H)
    return kernels.attention(q_THD, step.cache_NP2KD, prepared, step.spec, sinks_H, distance_bias_HX=bias_HX)


def attend_flat(kernels: Kernels, bench: Bench, step: Step) -> Outputs:
    """Attention of a step of decodes whose blocks lie in one list, padded; the reference takes it as it is."""
    not_finite = "numbers that are not finite, in rows that pad the step"
    if isinstance(kernels, OracleKernels):
        return {"result": attend(kernels, step), not_finite: torch.zeros(1)}
    rows = len(step.batch.q_lens)
    output_BHD = attend(kernels, _flatten(bench, step))
    return {
        "result": output_BHD[:rows],
        not_finite: (~output_BHD[rows:].isfinite()).float().sum().view(1),
    }


def _flatten(bench: Bench, step: Step) -> Step:
    batch, size, window = step.batch, step.batch.block_size, step.batch.window
    kv_lens = batch.kv_lens_B.cpu().tolist()
    columns = [
        range(0 if window is None else max(0, kv_len - window) // size, -(-kv_len // size)) for kv_len in kv_lens
    ]
    tables = batch.block_tables_BM.cpu().tolist()
    listed = [(tables[row][column], row, column * size) for row, seen in enumerate(columns) for column in seen]
    rows = len(columns) + _PADDING
    blocks, owners, starts = zip(*listed, *[(0, rows, 0)] * _PADDING, strict=True)
    lasts = [[tables[row][seen.stop - 1]] for row, seen in enumerate(columns)]
    return step._replace(
        q_THD=torch.cat((step.q_THD, step.q_THD[:1].repeat(_PADDING, 1, 1))),
        batch=batch._replace(
            q_lens=[1] * rows,
            kv_lens=[*batch.kv_lens, *[1] * _PADDING],
            num_decodes=rows,
            q_starts_B=bench.tensor(list(range(rows + 1)), torch.int64),
            kv_lens_B=bench.tensor([*kv_lens, *[1] * _PADDING], torch.int32),
            block_tables_BM=bench.tensor([*lasts, *[[0]] * _PADDING], torch.int32),
            slot_mapping_T=bench.tensor([*batch.slot_mapping_T.cpu().tolist(), *[0] * _PADDING], torch.int64),
            flat=FlatBlocks(
                bench.tensor(blocks, torch.int32),
                bench.tensor(owners, torch.int64),
                bench.tensor(starts, torch.int64),
            ),
        ),
    )
