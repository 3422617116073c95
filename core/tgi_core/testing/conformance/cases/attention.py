"""Cases of attention over the paged cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from msgspec.structs import replace
from torch import Tensor

from tgi_core.contract import AttentionSpec, GraphMode, Kernels, ShapeMode
from tgi_core.testing.conformance.cases.attention_steps import (
    Rows,
    Step,
    attend,
    attend_flat,
    attention_spec,
    make_step,
)
from tgi_core.testing.conformance.cases.case import Bench, Case, OracleKernels, Outputs, Run, Scope

_DECODES = "decodes around a block's border"
_UNEVEN = "decodes of very different lengths"
_EVEN = "chunks of the same length"
_MIXED = "decodes and chunks"


def _batches(block_size: int, scope: Scope) -> dict[str, Rows]:
    """Every kind of step; in one of a bucketed device all rows have the same q_len."""
    border = block_size
    batches: dict[str, Rows] = {
        "one token": [(1, 1)],
        _UNEVEN: [(1, 6 * border), (1, 1), (1, 2), (1, 5 * border + 1)],
        _DECODES: [(1, border - 1), (1, border), (1, border + 1), (1, 3 * border), (1, 2)],
        "one long decode": [(1, 9 * border + 3)],
        "a prompt": [(border + 5, border + 5)],
        "prompts around a block's border": [(border - 1, border - 1), (border, border), (border + 1, border + 1)],
        "chunks of prompts": [(7, 3 * border), (border, 2 * border + 1), (2, border + 1)],
        _EVEN: [(5, 5), (5, 2 * border + 1), (5, border + 1), (5, border)],
        _MIXED: [(1, 2 * border + 1), (1, 3), (5, border + 4), (border + 2, 2 * border)],
        "a chunk of one token behind a longer one": [(1, border), (4, 9), (1, border + 14)],
    }
    if scope.capabilities.shape_mode is ShapeMode.BUCKETED:
        return {label: rows for label, rows in batches.items() if len({q_len for q_len, _ in rows}) == 1}
    return batches


def _few(scope: Scope) -> tuple[str, str]:
    """A step of decodes and one of prefill."""
    return _DECODES, _EVEN if scope.capabilities.shape_mode is ShapeMode.BUCKETED else _MIXED


def attention(scope: Scope) -> Iterator[Case]:
    """Head sizes and groups over ragged batches, windows around the block's border, every feature of the contract."""
    first_size, first_block = scope.head_dims[0], scope.block_sizes[0]
    for block_size in scope.block_sizes:
        batches = _batches(block_size, scope)
        few = _few(scope)
        for size in scope.head_dims:
            for label in few if scope.quick or block_size != first_block else batches:
                yield _attention_case(scope, attention_spec(4, 2, size), label, batches[label], block_size)
        if block_size == first_block:
            grouped = [attention_spec(2 * group, 2, first_size) for group in scope.group_sizes]
            for spec in (*grouped, *_featured(first_size, block_size)):
                for label in few:
                    yield _attention_case(scope, spec, label, batches[label], block_size)
    yield from _edges(scope, scope.block_sizes[0])


def _edges(scope: Scope, block_size: int) -> Iterator[Case]:
    windowed, batches = attention_spec(4, 2, scope.head_dims[0], window=6), _batches(block_size, scope)
    yield Case(
        "attention",
        "stale entries in tables and blocks",
        partial(_attention_of_stale, spec=windowed, rows=batches[_few(scope)[1]], block_size=block_size),
        spec=windowed,
    )
    if scope.capabilities.graph is GraphMode.NONE and scope.capabilities.shape_mode is not ShapeMode.BUCKETED:
        return
    for spec in (attention_spec(4, 2, scope.head_dims[0]), replace(windowed, window=block_size + 1)):
        yield Case(
            "attention",
            f"{describe(spec)}, host lengths that are upper bounds, as in a step that is recorded",
            partial(
                _attention_of_bounds,
                spec=spec,
                rows=batches[_DECODES],
                block_size=block_size,
                flat=_is_flat(scope, batches[_DECODES]),
            ),
            spec=spec,
            captured=True,
        )


def _featured(size: int, block_size: int) -> Iterator[AttentionSpec]:
    plain = attention_spec(4, 2, size)
    for window in (1, 6, block_size - 1, block_size, block_size + 1):
        yield attention_spec(4, 2, size, window=window)
    slopes = (0.5, 0.25, 0.1, 0.0)
    yield replace(plain, soft_cap=3.0)
    yield replace(plain, alibi_slopes=slopes)
    yield replace(plain, sinks=True)
    yield replace(plain, window=block_size + 2, soft_cap=3.0, sinks=True)
    yield replace(plain, window=6, alibi_slopes=slopes, soft_cap=3.0)
    yield replace(plain, chunk=block_size + 3, window=block_size + 3)
    yield replace(plain, distances=12)
    yield replace(plain, num_kv_heads=1, latent_values=size // 2)


def _attention_case(scope: Scope, spec: AttentionSpec, label: str, rows: Rows, block_size: int) -> Case:
    run = partial(_attention, spec=spec, rows=rows, block_size=block_size, flat=_is_flat(scope, rows))
    suspects: dict[str, Run] = {name: partial(run, change=change) for name, change in _mistakes(spec).items()}
    text = f"{describe(spec)}, blocks of {block_size}, {label}"
    return Case("attention", text, run, spec=spec, suspects=suspects, captured=_decodes(rows))


def _decodes(rows: Rows) -> bool:
    return all(q_len == 1 for q_len, _ in rows)


def _is_flat(scope: Scope, rows: Rows) -> bool:
    """Whether a device gets such a step as a flat decode."""
    capabilities = scope.capabilities
    is_bucketed = capabilities.shape_mode is ShapeMode.BUCKETED
    return is_bucketed and capabilities.buckets.flat_decode and _decodes(rows)


Change = Callable[[Step], Step]


def _attention(
    kernels: Kernels,
    bench: Bench,
    *,
    spec: AttentionSpec,
    rows: Rows,
    block_size: int = 16,
    change: Change | None = None,
    flat: bool = False,
) -> Outputs:
    step = make_step(bench, spec, rows, block_size)
    if change is not None:
        step = change(step)
    if flat:
        return attend_flat(kernels, bench, step)
    # Twice: what a step leaves behind must not matter to the next.
    return {"result": attend(kernels, step), "result of the same step once more": attend(kernels, step)}


def _mistakes(spec: AttentionSpec) -> dict[str, Change]:
    found: dict[str, Change] = {
        "block tables are read one column too far": partial(_shift_columns, by=1),
        "block tables are read one column too early": partial(_shift_columns, by=-1),
        "the block after the one in the table is read": partial(_shift_blocks, by=1),
        "the block before the one in the table is read": partial(_shift_blocks, by=-1),
        "query heads are given to the wrong key heads": _regroup,
        "the scale is left out": lambda step: step.as_if(replace(spec, scale=1.0)),
    }
    if spec.window is not None:
        found["the window is ignored"] = lambda step: step.as_if(replace(spec, window=None, chunk=None))
        for off, name in ((1, "long"), (-1, "short")):
            other = replace(spec, window=max(1, spec.window + off))
            found[f"the window is one token too {name}"] = partial(_as_if, spec=other)
    for field, name in _FEATURES.items():
        if getattr(spec, field):
            nothing = False if field == "sinks" else None
            found[f"{name} ignored"] = partial(_as_if, spec=replace(spec, **{field: nothing}))
    return found


_FEATURES = {
    "soft_cap": "the soft cap is",
    "alibi_slopes": "the bias on distance is",
    "sinks": "the sinks are",
    "chunk": "the chunks are",
    "distances": "the learned bias on distance is",
}


def _as_if(step: Step, *, spec: AttentionSpec) -> Step:
    return step.as_if(spec)


def _shift_columns(step: Step, *, by: int) -> Step:
    tables_BM = step.batch.block_tables_BM.roll(-by, dims=1)
    return step._replace(batch=step.batch._replace(block_tables_BM=_existing(tables_BM, step)))


def _shift_blocks(step: Step, *, by: int) -> Step:
    tables_BM = step.batch.block_tables_BM + by
    return step._replace(batch=step.batch._replace(block_tables_BM=_existing(tables_BM, step)))


def _existing(tables_BM: Tensor, step: Step) -> Tensor:
    return tables_BM.clamp(0, len(step.cache_NP2KD) - 1)


def _regroup(step: Step) -> Step:
    """Key heads by turns: query head h reads key head h modulo K."""
    heads, kv_heads = step.spec.num_heads, step.spec.num_kv_heads
    wanted_H = torch.arange(heads) % kv_heads
    cache = step.cache_NP2KD.index_select(3, wanted_H)
    return step._replace(spec=replace(step.spec, num_kv_heads=heads), cache_NP2KD=cache)


def _attention_of_bounds(
    kernels: Kernels, bench: Bench, *, spec: AttentionSpec, rows: Rows, block_size: int, flat: bool
) -> Outputs:
    step = make_step(bench, spec, rows, block_size)
    columns = step.batch.block_tables_BM.shape[1]
    # The reference reads lengths on the host: it is given the true ones.
    if not isinstance(kernels, OracleKernels):
        step = step._replace(batch=step.batch._replace(kv_lens=[columns * block_size] * len(rows)))
    return attend_flat(kernels, bench, step) if flat else {"result": attend(kernels, step)}


def _attention_of_stale(kernels: Kernels, bench: Bench, *, spec: AttentionSpec, rows: Rows, block_size: int) -> Outputs:
    """Columns before a window may name any block, and a block's tail holds any finite number."""
    step = make_step(bench, spec, rows, block_size)
    assert spec.window is not None
    for row, (q_len, kv_len) in enumerate(rows):
        last = int(step.batch.block_tables_BM[row, (kv_len - 1) // block_size])
        step.cache_NP2KD[last, (kv_len - 1) % block_size + 1 :] = 1e4
        step.batch.block_tables_BM[row, : max(0, kv_len - q_len - spec.window + 1) // block_size] = 0
    return {"result": attend(kernels, step)}


def describe(spec: AttentionSpec) -> str:
    """A spec for people."""
    parts = [f"heads of {spec.head_dim}, {spec.num_heads // spec.num_kv_heads} a key head"]
    if spec.window is not None:
        parts.append(f"a window of {spec.window}")
    return ", ".join([*parts, *sorted(spec.features)])
