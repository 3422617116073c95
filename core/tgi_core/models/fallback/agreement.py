"""How far logits of two computations may lie apart and still be those of the same model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_MOST = {torch.float32: 1e-3, torch.float64: 1e-3}
_MOST_16_BIT = 0.05


def difference(found_TV: Tensor, expected_TV: Tensor) -> float:
    """Their distance as a share of what is expected; nan where one of them is."""
    distance = torch.linalg.vector_norm((found_TV - expected_TV).float())
    return float(distance / torch.linalg.vector_norm(expected_TV.float()).clamp_min(1e-30))


def most_difference(dtype: torch.dtype) -> float:
    """The most that rounding in ``dtype`` explains; a mistake makes more."""
    return _MOST.get(dtype, _MOST_16_BIT)


@contextmanager
def attending_with(model: Any, implementation: str) -> Iterator[None]:
    """``model`` with another of transformers' implementations of attention: "eager" is written out in plain torch."""
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    names = {key: config._attn_implementation for key, config in configs.items()}
    try:
        for config in configs.values():
            config._attn_implementation = implementation
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = names[key]
