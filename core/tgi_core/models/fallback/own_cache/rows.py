"""Caches of transformers as rows: several become one batch, padded on the left, and a batch falls apart again.

Known are caches of layers that grow by a token (keys and values [B, K, L, D], all of them or a window's) and of layers
that keep states [B, ...] of a fixed size, as transformers' ``DynamicCache`` has them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

_GROWING = ("keys", "values")
_FIXED = ("conv_states", "recurrent_states")
_LAYERS = frozenset(
    {
        "DummyLayer",
        "DynamicLayer",
        "DynamicSlidingWindowLayer",
        "LinearAttentionAndFullAttentionLayer",
        "LinearAttentionAndSlidingWindowAttentionLayer",
        "LinearAttentionLayer",
    }
)


def can_merge(cache: Any) -> bool:
    """Whether rows of such caches can be put into one batch and taken out again."""
    from transformers import DynamicCache

    return type(cache) is DynamicCache and all(type(layer).__name__ in _LAYERS for layer in cache.layers)


def merge_caches(caches: Sequence[Any], lengths: Sequence[int]) -> Any:
    """One cache of all rows. Those given are emptied layer by layer, so that memory holds one layer twice at most.

    Args:
        caches: of one row each.
        lengths: their tokens.
    """
    merged = copy.copy(caches[0])
    merged.layers = [
        _merge_layers(layers, max(lengths)) for layers in zip(*(cache.layers for cache in caches), strict=True)
    ]
    return merged


def split_cache(cache: Any, lengths: Sequence[int]) -> list[Any]:
    """Caches of each row alone, without padding: views of the batch's memory.

    Args:
        cache: of several rows.
        lengths: their tokens, without padding.
    """
    rows = []
    for row, length in enumerate(lengths):
        alone = copy.copy(cache)
        alone.layers = [_take_row(layer, row, length) for layer in cache.layers]
        rows.append(alone)
    return rows


def size_bytes(held: Any) -> int:
    """Memory of all tensors in a cache of any kind."""
    seen: set[int] = set()

    def visit(part: Any) -> int:
        if id(part) in seen or isinstance(part, nn.Module):
            return 0
        seen.add(id(part))
        if isinstance(part, Tensor):
            return part.nbytes
        if isinstance(part, dict):
            return sum(map(visit, part.values()))
        if isinstance(part, list | tuple):
            return sum(map(visit, part))
        return visit(vars(part)) if hasattr(part, "__dict__") and not isinstance(part, type) else 0

    return visit(held)


def _merge_layers(layers: Sequence[Any], longest: int) -> Any:
    merged = copy.copy(layers[0])
    for name in _GROWING:
        tensors: list[Any] = [getattr(layer, name, None) for layer in layers]
        if any(tensor is None for tensor in tensors):
            continue
        setattr(merged, name, _pad_left(tensors))
        for layer in layers:
            setattr(layer, name, None)
    if hasattr(merged, "cumulative_length"):
        merged.cumulative_length = longest
    for name in _FIXED:
        states: list[Any] = [getattr(layer, name, None) for layer in layers]
        if states[0]:
            setattr(merged, name, {key: _concatenate([state[key] for state in states]) for key in states[0]})
            for layer in layers:
                setattr(layer, name, {})
    return merged


def _pad_left(tensors: Sequence[Tensor]) -> Tensor:
    _, heads, _, size = tensors[0].shape
    longest = max(tensor.shape[2] for tensor in tensors)
    padded_BKLD = tensors[0].new_zeros(len(tensors), heads, longest, size)
    for row, tensor in enumerate(tensors):
        padded_BKLD[row, :, longest - tensor.shape[2] :] = tensor[0]
    return padded_BKLD


def _concatenate(states: Sequence[Tensor | None]) -> Tensor | None:
    known = [state for state in states if state is not None]
    return torch.cat(known) if known else None


def _take_row(layer: Any, row: int, length: int) -> Any:
    alone = copy.copy(layer)
    for name in _GROWING:
        tensor = getattr(layer, name, None)
        if tensor is not None:
            kept = min(length, tensor.shape[2])
            setattr(alone, name, tensor[row : row + 1, :, tensor.shape[2] - kept :])
    if hasattr(alone, "cumulative_length"):
        alone.cumulative_length = length
    for name in _FIXED:
        states = getattr(layer, name, None)
        if states:
            taken = {key: None if state is None else state[row : row + 1] for key, state in states.items()}
            setattr(alone, name, taken)
    return alone
