"""What a provider of prefill attention is, and what several of them ask."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec, AttentionUse, Device

PreparedPrefill = Any
"""What ``prepare`` returns and ``attend`` takes; only the provider knows its form."""


class Obstacle(NamedTuple):
    """Why a provider cannot be used, to follow "because", and what would help."""

    reason: str
    fix: str = ""


class PrefillAttention(ABC):
    """A provider's library, opened for one model."""

    @abstractmethod
    def prepare(self, batch: AttentionBatch, spec: AttentionSpec) -> PreparedPrefill:
        """What the layers of a KV group share in a step that has prefill rows: those after ``batch.num_decodes``."""

    @abstractmethod
    def attend(self, q_THD: Tensor, cache_NP2KD: Tensor, prepared: PreparedPrefill, spec: AttentionSpec) -> Tensor:
        """``Kernels.attention`` of the prefill rows alone: ``q`` holds only their tokens. Returns [T, H, D]."""


class Provider(ABC):
    """An optional library, looked at without being imported.

    Attributes:
        name: what ``--attention`` takes.
        distribution: the package that brings it.
    """

    name: str
    distribution: str

    @abstractmethod
    def missing(self) -> Obstacle | None:
        """What keeps the library from being imported, as far as that can be told without importing it."""

    @abstractmethod
    def unfit(self, capability: tuple[int, int], use: AttentionUse) -> Obstacle | None:
        """What of the GPU's compute capability or the model's attention the library does not take."""

    @abstractmethod
    def open(self, device: Device, use: AttentionUse) -> PrefillAttention:
        """Import the library for a use that it takes."""

    def obstacle(self, capability: tuple[int, int], use: AttentionUse) -> Obstacle | None:
        """Why it cannot be used; None when it can. What no installation would cure comes first."""
        return self.unfit(capability, use) or self.missing()


def unfit_model(use: AttentionUse, head_dims: tuple[int, ...] | range) -> Obstacle | None:
    """What hinders every library: 32-bit types, a soft cap, whose tanh they approximate, what heads add to scores, and
    head sizes."""
    if use.dtype not in {"bfloat16", "float16"}:
        return Obstacle(f"it does not compute in {use.dtype}", "Use --dtype bfloat16.")
    for spec in use.specs:
        if spec.soft_cap is not None:
            return Obstacle("its soft cap is only approximate, and this model has one")
        if spec.features:
            return Obstacle(f"it has no place for what this model asks: {', '.join(sorted(spec.features))}")
        if spec.head_dim not in head_dims:
            return Obstacle(f"it does not take heads of {spec.head_dim} features here")
    return None


def has_module(name: str) -> bool:
    """Whether a top-level module can be found; it is not imported."""
    return importlib.util.find_spec(name) is not None


def installed_version(distribution: str) -> str:
    """The version of a distribution, "" when it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
