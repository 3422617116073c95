"""Where weights come from: a checkpoint, read and checked tensor by tensor, or random numbers."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.contract.shard import LoadProgress
from tgi_core.errors import ExitCode, StartupError
from tgi_core.models.spec import Architecture

_MISMATCH = "Check that config.json belongs to these weights."


class Checkpoint(Protocol):
    """What the loader needs of an opened checkpoint."""

    @property
    def names(self) -> Collection[str]:
        """Every tensor's name."""

    @property
    def total_bytes(self) -> int:
        """Data of all tensors, as stored."""

    def tensor(self, name: str) -> Tensor:
        """One tensor, on the CPU, in the checkpoint's dtype."""

    def file_name(self, name: str) -> str:
        """The file that holds it."""


class WeightSource(Protocol):
    """Where weights come from, by the names that ``WeightNames`` gives them."""

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor on the device in the model's dtype."""

    def ones(self, shape: tuple[int, ...]) -> Tensor:
        """The weight of a norm that has none, on the device in the model's dtype."""

    def drop(self, name: str) -> None:
        """A tensor that may be there and is not needed."""

    def finish(self) -> None:
        """All weights of the model have been taken."""


class CheckpointSource:
    """Reads a checkpoint and knows which tensors nobody asked for."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        architecture: Architecture,
        dtype: torch.dtype,
        device: torch.device,
        progress: LoadProgress,
    ) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._loaded_bytes = 0
        rename = _Renaming(architecture)
        self._unused = {
            rename(name): name
            for name in checkpoint.names
            if not rename.ignores(name) and not name.endswith("rotary_emb.inv_freq")
        }

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read one tensor.

        Raises:
            StartupError: it is missing or has another shape.
        """
        if name not in self._unused:
            raise StartupError(
                f"The checkpoint has no tensor `{name}`, which should have shape {list(shape)}.",
                _MISMATCH,
                ExitCode.MODEL,
            )
        stored_name = self._unused.pop(name)
        tensor = self._checkpoint.tensor(stored_name)
        if tuple(tensor.shape) != shape:
            raise StartupError(
                f"Tensor `{stored_name}` in {self._checkpoint.file_name(stored_name)} has shape {list(tensor.shape)}, "
                f"config.json asks for {list(shape)}.",
                _MISMATCH,
                ExitCode.MODEL,
            )
        self._loaded_bytes += tensor.nbytes
        self._progress(self._loaded_bytes, self._checkpoint.total_bytes)
        return tensor.to(self._device, self._dtype)

    def ones(self, shape: tuple[int, ...]) -> Tensor:
        """Ones; nothing is read."""
        return torch.ones(shape, dtype=self._dtype, device=self._device)

    def drop(self, name: str) -> None:
        """A tensor that may be there and is not needed."""
        self._unused.pop(name, None)

    def finish(self) -> None:
        """Refuse a checkpoint that holds more than the model uses.

        Raises:
            StartupError: tensors are left.
        """
        if self._unused:
            left = sorted(self._unused.values())
            told = ", ".join(f"`{name}` in {self._checkpoint.file_name(name)}" for name in left[:5])
            raise StartupError(
                f"The checkpoint has {len(left)} tensors that the model does not use: {told}.",
                _MISMATCH,
                ExitCode.MODEL,
            )
        self._progress(self._checkpoint.total_bytes, self._checkpoint.total_bytes)


class RandomSource:
    """Random weights for benchmarks, scaled so that activations keep their size from layer to layer."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator(device).manual_seed(0)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Uniform numbers of variance 1 / inputs (the last axis), or a vector: zeros for a bias, ones for a norm."""
        if len(shape) == 1:
            fill = 0.0 if name.endswith(".bias") else 1.0
            return torch.full(shape, fill, dtype=self._dtype, device=self._device)
        bound = (3 / shape[-1]) ** 0.5
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        return tensor.uniform_(-bound, bound, generator=self._generator)

    def ones(self, shape: tuple[int, ...]) -> Tensor:
        """Ones."""
        return torch.ones(shape, dtype=self._dtype, device=self._device)

    def drop(self, name: str) -> None:
        """Nothing is there that could be left over."""

    def finish(self) -> None:
        """Nothing can be left over."""


class _Renaming:
    """From a checkpoint's names to those that the architecture's ``names`` give."""

    def __init__(self, architecture: Architecture) -> None:
        self._renames = [(_pattern(prefix), replacement) for prefix, replacement in architecture.renames]
        self._ignored = [_pattern(prefix) for prefix in architecture.ignored]

    def __call__(self, name: str) -> str:
        for pattern, replacement in self._renames:
            found = pattern.match(name)
            if found is not None:
                return replacement.format(*found.groups()) + name[found.end() :]
        return name

    def ignores(self, name: str) -> bool:
        return any(pattern.match(name) for pattern in self._ignored)


def _pattern(prefix: str) -> re.Pattern[str]:
    return re.compile(re.escape(prefix).replace(r"\{\}", r"(\d+)"))
