"""Cases of what writes into the paged cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from msgspec.structs import replace
from torch import Tensor

from tgi_core.contract import AttentionSpec, HeadNorms, Kernels
from tgi_core.testing.conformance.cases.attention import describe
from tgi_core.testing.conformance.cases.attention_steps import Rows, Step, attention_spec, make_step
from tgi_core.testing.conformance.cases.case import Bench, Case, Outputs, Run, Scope
from tgi_core.testing.conformance.cases.elementwise import make_rotary, rope_suspects


def write_kv(scope: Scope) -> Iterator[Case]:
    """One token, blocks' borders, tokens that only pad a step, latent keys alone."""
    for block_size in scope.block_sizes:
        for size in scope.head_dims:
            for label, rows in _writes(block_size).items():
                run = partial(_write_kv, spec=attention_spec(4, 2, size), rows=rows, block_size=block_size)
                suspects: dict[str, Run] = {
                    "keys and values are exchanged": partial(run, exchanged=True),
                    "blocks are written one off": partial(run, shifted=block_size),
                    "nothing is written": partial(run, written=False),
                }
                text = f"heads of {size}, blocks of {block_size}, {label}"
                yield Case("write_kv", text, run, suspects=suspects, captured=True)
    latent = replace(attention_spec(4, 1, scope.head_dims[0]), latent_values=scope.head_dims[0] // 2)
    rows = _writes(scope.block_sizes[0])["a ragged step"]
    run = partial(_write_kv, spec=latent, rows=rows, block_size=scope.block_sizes[0])
    yield Case("write_kv", "keys alone, whose first features are the values", run, captured=True)


def rope_write_kv(scope: Scope) -> Iterator[Case]:
    """Whole and partial rotation and none, groups of heads, blocks' borders."""
    block_size = scope.block_sizes[0]
    for size, group, half in _rotations(scope):
        spec = attention_spec(2 * group, 2, size)
        for label, rows in _writes(block_size).items():
            run = partial(_rope_write_kv, spec=spec, rows=rows, block_size=block_size, half=half)
            suspects = rope_suspects(run) if half else {}
            suspects["keys and values are exchanged"] = partial(run, exchanged=True)
            suspects["blocks are written one off"] = partial(run, shifted=block_size)
            text = f"{describe(spec)}, {2 * half} features rotated, {label}"
            yield Case("rope_write_kv", text, run, suspects=suspects, captured=True)


def norm_rope_write_kv(scope: Scope) -> Iterator[Case]:
    """The same behind norms of every head."""
    block_size = scope.block_sizes[0]
    rows = _writes(block_size)["a ragged step"]
    for size, group, half in _rotations(scope):
        spec = attention_spec(2 * group, 2, size)
        for offset in (0.0, 1.0):
            run = partial(_norm_rope_write_kv, spec=spec, rows=rows, block_size=block_size, half=half, offset=offset)
            suspects = rope_suspects(run) if half else {}
            text = f"{describe(spec)}, {2 * half} features rotated, offset {offset:g}"
            yield Case("norm_rope_write_kv", text, run, suspects=suspects, captured=True)


def _rotations(scope: Scope) -> Iterator[tuple[int, int, int]]:
    """(head size, query heads a key head, half of the features that rotate)."""
    for size in scope.head_dims:
        yield size, 4, size // 2
    first = scope.head_dims[0]
    for group in scope.group_sizes:
        yield first, group, first // 4
    yield first, 1, 0


def _writes(block_size: int) -> dict[str, Rows]:
    return {
        "one token": [(1, 1)],
        "a ragged step": [(1, block_size), (1, block_size + 1), (5, block_size + 3), (block_size, block_size)],
    }


def _write_kv(
    kernels: Kernels,
    bench: Bench,
    *,
    spec: AttentionSpec,
    rows: Rows,
    block_size: int,
    exchanged: bool = False,
    shifted: int = 0,
    written: bool = True,
) -> Outputs:
    step = make_step(bench, spec, rows, block_size)
    tokens, cache = len(step.q_THD), step.cache_NP2KD
    kv_TKD = tuple(bench.normal(tokens, spec.num_kv_heads, spec.head_dim) for _ in range(cache.shape[2]))
    mapping_T = (step.batch.slot_mapping_T + shifted) % cache.flatten(0, 1).shape[0]
    if written:
        kernels.write_kv(kv_TKD[::-1] if exchanged else kv_TKD, cache, mapping_T)
    return {"cache": cache}


def _rope_write_kv(
    kernels: Kernels,
    bench: Bench,
    *,
    spec: AttentionSpec,
    rows: Rows,
    block_size: int,
    half: int,
    exchanged: bool = False,
    shifted: int = 0,
) -> Outputs:
    step, qkv_TX, rotary, mapping_T = _projection(bench, spec, rows, block_size, half)
    cache = step.cache_NP2KD
    mapping_T = (mapping_T + shifted) % cache.flatten(0, 1).shape[0]
    q_THD = kernels.rope_write_kv(qkv_TX, spec, rotary, cache, mapping_T)
    return {"queries": q_THD, "cache": cache.flip(2) if exchanged else cache}


def _norm_rope_write_kv(
    kernels: Kernels, bench: Bench, *, spec: AttentionSpec, rows: Rows, block_size: int, half: int, offset: float
) -> Outputs:
    step, qkv_TX, rotary, mapping_T = _projection(bench, spec, rows, block_size, half)
    q_norm_D, k_norm_D = bench.normal(spec.head_dim, mean=1, scale=0.3), bench.normal(spec.head_dim, mean=1, scale=0.3)
    norms = HeadNorms(q_norm_D, k_norm_D, 1e-3, offset)
    cache = step.cache_NP2KD
    q_THD = kernels.norm_rope_write_kv(qkv_TX, spec, rotary, cache, mapping_T, norms=norms)
    return {"queries": q_THD, "cache": cache}


def _projection(
    bench: Bench, spec: AttentionSpec, rows: Rows, block_size: int, half: int
) -> tuple[Step, Tensor, tuple[Tensor, Tensor] | None, Tensor]:
    step = make_step(bench, spec, rows, block_size)
    tokens = len(step.q_THD)
    qkv_TX = bench.normal(tokens, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim)
    return step, qkv_TX, make_rotary(bench, tokens, half) if half else None, step.batch.slot_mapping_T


def copy_blocks(scope: Scope) -> Iterator[Case]:
    """One block, several, none."""
    for block_size in scope.block_sizes:
        for label, pairs in (("one block", [(2, 5)]), ("several blocks", [(0, 3), (1, 4), (1, 6)]), ("no block", [])):
            run = partial(_copy_blocks, block_size=block_size, pairs=pairs)
            suspects: dict[str, Run] = {
                "only keys are copied": partial(run, parts=slice(0, 1)),
                "only values are copied": partial(run, parts=slice(1, 2)),
                "sources and targets are exchanged": partial(run, back=True),
                "nothing is copied": partial(run, parts=slice(0, 0)),
            }
            yield Case("copy_blocks", f"blocks of {block_size}, {label}", run, suspects=suspects)


def _copy_blocks(
    kernels: Kernels,
    bench: Bench,
    *,
    block_size: int,
    pairs: list[tuple[int, int]],
    parts: slice = slice(None),
    back: bool = False,
) -> Outputs:
    """``parts``: whether keys, values or both are copied."""
    cache = bench.normal(8, block_size, 2, 2, 16)
    copied = cache.clone()
    sources_R, targets_R = (bench.tensor([pair[side] for pair in pairs], torch.int64) for side in (0, 1))
    if back:
        sources_R, targets_R = targets_R, sources_R
    kernels.copy_blocks(copied, sources_R, targets_R)
    cache[:, :, parts] = copied[:, :, parts]
    return {"cache": cache}
