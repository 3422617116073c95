"""Where weights come from: a checkpoint, read and checked tensor by tensor, or random numbers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.contract.shard import LoadProgress
from tgi_core.errors import ExitCode, StartupError
from tgi_core.models.family import ModelFamily

_MISMATCH = "Check that config.json belongs to these weights."


class Checkpoint(Protocol):
    """What the loader needs of an opened checkpoint."""

    @property
    def names(self) -> Collection[str]:
        """Every tensor's name."""

    @property
    def total_bytes(self) -> int:
        """Data of all tensors, as they are read."""

    def tensor(self, name: str) -> Tensor:
        """One tensor, on the CPU."""

    def slices(self, name: str) -> Iterable[Tensor]:
        """Its parts along the first axis."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Its shape; reads nothing."""

    def file_name(self, name: str) -> str:
        """The file that holds it."""


class WeightSource(Protocol):
    """Where weights come from, by the names that ``WeightNames`` gives them.

    Attributes:
        notes: what a user should know of them.
    """

    @property
    def notes(self) -> tuple[str, ...]: ...

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """One tensor on the device, in the model's dtype unless another is asked for."""

    def slices(self, name: str, shape: tuple[int, ...]) -> Iterator[Tensor]:
        """The parts of such a tensor along its first axis, of which no more than one is made at a time."""

    def ones(self, shape: tuple[int, ...]) -> Tensor:
        """The weight of a norm that has none, on the device in the model's dtype."""

    def has(self, name: str) -> bool:
        """Whether there is such a tensor that nobody has asked for yet."""

    def drop(self, name: str) -> None:
        """A tensor that may be there and is not needed."""

    def finish(self) -> None:
        """All weights of the model have been taken."""


class CheckpointSource:
    """Reads a checkpoint and knows which tensors nobody asked for."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        family: ModelFamily,
        dtype: torch.dtype,
        device: torch.device,
        progress: LoadProgress,
        *,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.notes = notes
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._loaded_bytes = 0
        rename = _Renaming(family)
        self._unused = {
            rename(name): name
            for name in checkpoint.names
            if not rename.ignores(name) and not name.endswith("rotary_emb.inv_freq")
        }

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """Read one tensor.

        Raises:
            StartupError: it is missing, has another shape or is quantized in a way that is not known.
        """
        stored_name = self._find(name, shape)
        return self._placed(stored_name, self._checkpoint.tensor(stored_name), dtype)

    def slices(self, name: str, shape: tuple[int, ...]) -> Iterator[Tensor]:
        """Read one tensor, one part after the other.

        Raises:
            StartupError: it is missing or has another shape.
        """
        stored_name = self._find(name, shape)
        for part in self._checkpoint.slices(stored_name):
            yield self._placed(stored_name, part, None)

    def _find(self, name: str, shape: tuple[int, ...]) -> str:
        """The stored name of a tensor, which then counts as taken."""
        if name not in self._unused:
            raise StartupError(
                f"The checkpoint has no tensor `{name}`, which should have shape {list(shape)}.",
                _MISMATCH,
                ExitCode.MODEL,
            )
        stored_name = self._unused.pop(name)
        found = self._checkpoint.shape(stored_name)
        if found != shape:
            raise StartupError(
                f"Tensor `{stored_name}` in {self._checkpoint.file_name(stored_name)} has shape {list(found)}, "
                f"config.json asks for {list(shape)}.",
                _MISMATCH,
                ExitCode.MODEL,
            )
        return stored_name

    def _placed(self, stored_name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
        """The tensor on the device.

        Raises:
            StartupError: it holds whole numbers, which stand for weights in a way that nothing here tells.
        """
        if not tensor.is_floating_point():
            raise StartupError(
                f"Tensor `{stored_name}` in {self._checkpoint.file_name(stored_name)} has type "
                f"{str(tensor.dtype).removeprefix('torch.')}, config.json says of no quantization that makes weights "
                "of it.",
                _MISMATCH,
                ExitCode.MODEL,
            )
        placed = tensor.to(self._device, dtype or self._dtype)
        self._loaded_bytes += tensor.nbytes
        self._progress(self._loaded_bytes, self._checkpoint.total_bytes)
        return placed

    def ones(self, shape: tuple[int, ...]) -> Tensor:
        """Ones; nothing is read."""
        return torch.ones(shape, dtype=self._dtype, device=self._device)

    def has(self, name: str) -> bool:
        """Whether there is such a tensor that nobody has asked for yet."""
        return name in self._unused

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

    notes: tuple[str, ...] = ()

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._generator = _make_generator(device).manual_seed(0)

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """Uniform numbers of variance 1 / inputs (the last axis), or a vector: zeros for a bias, ones for a norm."""
        if len(shape) == 1:
            fill = 0.0 if name.endswith(".bias") else 1.0
            return torch.full(shape, fill, dtype=dtype or self._dtype, device=self._device)
        bound = (3 / shape[-1]) ** 0.5
        tensor = torch.empty(shape, dtype=dtype or self._dtype, device=self._generator.device)
        return tensor.uniform_(-bound, bound, generator=self._generator).to(self._device)

    def slices(self, name: str, shape: tuple[int, ...]) -> Iterator[Tensor]:
        """Such tensors of the other axes."""
        for _ in range(shape[0]):
            yield self.take(name, shape[1:])

    def ones(self, shape: tuple[int, ...]) -> Tensor:
        """Ones."""
        return torch.ones(shape, dtype=self._dtype, device=self._device)

    def has(self, name: str) -> bool:  # noqa: ARG002
        """Nothing is there unless it is asked for."""
        return False

    def drop(self, name: str) -> None:
        """Nothing is there that could be left over."""

    def finish(self) -> None:
        """Nothing can be left over."""


def _make_generator(device: torch.device) -> torch.Generator:
    """The device's, or the host's for one that has no random numbers of its own."""
    try:
        return torch.Generator(device)
    except RuntimeError:
        return torch.Generator()


class _Renaming:
    """From a checkpoint's names to those that the model asks for."""

    def __init__(self, family: ModelFamily) -> None:
        self._renames = [(_pattern(prefix), replacement) for prefix, replacement in family.renames]
        self._ignored = [_pattern(prefix) for prefix in family.ignored]

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
