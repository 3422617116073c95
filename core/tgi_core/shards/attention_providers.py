"""Optional libraries that attend for the prefill rows of a step: what one says of itself, and what a backend offers."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionOption, AttentionSpec, AttentionUse, Device

PreparedPrefill = Any
"""What ``prepare`` returns and ``attend`` takes; only the provider knows its form."""

HardwareT = TypeVar("HardwareT")
"""What a backend knows a device's architecture by, such as a compute capability."""


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


class Provider(ABC, Generic[HardwareT]):
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
    def unfit(self, hardware: HardwareT, use: AttentionUse) -> Obstacle | None:
        """What of the device or the model's attention the library does not take."""

    @abstractmethod
    def open(self, device: Device, use: AttentionUse) -> PrefillAttention:
        """Import the library for a use that it takes."""

    def obstacle(self, hardware: HardwareT, use: AttentionUse) -> Obstacle | None:
        """Why it cannot be used; None when it can. What no installation would cure comes first."""
        return self.unfit(hardware, use) or self.missing()


def list_options(
    providers: Sequence[Provider[HardwareT]],
    hardware: HardwareT,
    use: AttentionUse,
    *,
    faster: Collection[str],
    place: str,
    own: str,
) -> tuple[AttentionOption, ...]:
    """Every provider and then a backend's own kernels; see ``Backend.attention_options``.

    Args:
        providers: in the order in which "auto" tries them.
        hardware: the device's architecture.
        use: what the model asks.
        faster: names of those that count as faster than the backend's own kernels on this hardware.
        place: names the hardware in a sentence, as in "on compute capability 9.0".
        own: name of the backend's own kernels.
    """
    others = tuple(_option(provider, provider.obstacle(hardware, use), faster, place) for provider in providers)
    beaten = any(option.automatic for option in others)
    remark = "our own kernels" if beaten else "our own kernels, since nothing that counts as faster can be used"
    return (*others, AttentionOption(name=own, remark=remark))


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


def _option(
    provider: Provider[HardwareT], obstacle: Obstacle | None, faster: Collection[str], place: str
) -> AttentionOption:
    if obstacle is not None:
        return AttentionOption(name=provider.name, obstacle=obstacle.reason, fix=obstacle.fix, automatic=False)
    automatic = provider.name in faster
    speed = "counts as faster" if automatic else "is not known to be faster"
    installed = f"{provider.distribution} {installed_version(provider.distribution)}".rstrip()
    remark = f"{installed} {speed} than our own kernels {place}"
    return AttentionOption(name=provider.name, automatic=automatic, remark=remark)
