"""Our attention under a name of transformers' attention interface.

The interface is transformers' public way to replace attention: a model that is built with our name calls
``attention_forward`` once a layer. What a call does depends on the forward that it belongs to, which a context variable
tells: not every architecture passes further arguments on to its attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor

from tgi_core.models.fallback.pretrained import dtype_argument

NAME = "tgi_paged"
"""What ``attn_implementation`` takes."""


class Attends(Protocol):
    """Attention of one forward; called once a layer, in the order of the layers."""

    def __call__(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, arguments: dict[str, Any]) -> Tensor:
        """Attention of all tokens [T, H, D]; ``arguments`` are what transformers gives beside queries, keys, values."""


_FORWARD: ContextVar[Attends] = ContextVar("tgi_serve_forward")


@contextmanager
def attending(attends: Attends) -> Iterator[None]:
    """Calls of ``attention_forward`` inside go to ``attends``."""
    token = _FORWARD.set(attends)
    try:
        yield
    finally:
        _FORWARD.reset(token)


def attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,  # noqa: ARG001 - causality and windows are those of the layer
    **arguments: Any,
) -> tuple[Tensor, None]:
    """Transformers' signature: query [1, H, T, D], key and value [1, K, T, D] -> ([1, T, H, D], no weights)."""
    causal = arguments.get("is_causal")
    arguments["is_causal"] = getattr(module, "is_causal", True) if causal is None else causal
    attends = _FORWARD.get()
    output_THD = attends(query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), arguments)
    return output_THD[None], None


def build_arguments(dtype: torch.dtype) -> dict[str, Any]:
    """What makes transformers build a model in ``dtype`` with our attention."""
    return {**dtype_argument(dtype), "attn_implementation": NAME}


def register() -> None:
    """Make ``NAME`` known to transformers. No mask function goes with it, so that none is built."""
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(NAME, attention_forward)
