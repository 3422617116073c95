"""Rotary position embeddings as data."""

from __future__ import annotations

import msgspec


class LinearScaling(msgspec.Struct, frozen=True):
    """Positions divided by ``factor``. Source: Chen et al. 2023."""

    factor: float


class Llama3Scaling(msgspec.Struct, frozen=True):
    """Low frequencies divided by ``factor``, high ones kept, those between blended. Source: the Llama 3.1 release."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


class YarnScaling(msgspec.Struct, frozen=True):
    """NTK-by-parts interpolation; cos and sin are multiplied by ``attention_factor``. Source: Peng et al. 2023."""

    factor: float
    attention_factor: float
    beta_fast: float
    beta_slow: float
    original_max_positions: int
    truncate: bool


class LongRopeScaling(msgspec.Struct, frozen=True):
    """A divisor for each pair of features, of one list within the original context and of another beyond it.

    cos and sin are multiplied by the list's ``attention_factor``. Source: Ding et al. 2024.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    short_attention_factor: float
    long_attention_factor: float
    original_max_positions: int


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling


class RopeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A rotary position embedding: base, how many features of a head it rotates, and how it is stretched."""

    theta: float
    rotary_dim: int
    scaling: RopeScaling | None = None
