"""Where a layer that attends finds its part of a step."""

from __future__ import annotations

from typing import NamedTuple

from tgi_core.contract.kernels import AttentionSpec, Kernels


class AttentionPlace(NamedTuple):
    """A layer's place among those that attend.

    Attributes:
        kernels: those that attend in its KV group.
        spec: of that group.
        group: its number.
        cache: index of the layer's cache.
        rope: which of the step's rotaries turns queries and keys; None for none.
    """

    kernels: Kernels
    spec: AttentionSpec
    group: int
    cache: int
    rope: int | None
