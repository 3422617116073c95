"""Typed questions to a GGUF file's metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tgi_core.errors import ExitCode, StartupError

MetadataValue = bool | int | float | str | list[str] | NDArray[Any]
"""A scalar, an array of strings as a list, or an array of numbers."""

Scalar = TypeVar("Scalar", bool, int, float, str)

CONVERT_AGAIN = "Convert the original model with a current llama.cpp, or serve the original model."


def refuse(path: Path, cause: str, fix: str = "Download the file again.") -> StartupError:
    """The error for a GGUF file that cannot be used."""
    return StartupError(f"The GGUF file {path} {cause}.", fix, ExitCode.MODEL)


class GgufMetadata:
    """The key/value part of a GGUF file. Every method raises StartupError for a value of the wrong type."""

    def __init__(self, path: Path, values: dict[str, MetadataValue]) -> None:
        self.path = path
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    @property
    def architecture(self) -> str:
        """The model family, ``general.architecture``."""
        return self.need("general.architecture", str)

    def find(self, key: str, kind: type[Scalar]) -> Scalar | None:
        """The scalar at ``key``, or None where the file has no such key."""
        value = self._values.get(key)
        if value is None:
            return None
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return kind(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            found = "an array" if isinstance(value, list | np.ndarray) else type(value).__name__
            raise refuse(self.path, f"has {found} at `{key}`, not {kind.__name__}", CONVERT_AGAIN)
        return value

    def need(self, key: str, kind: type[Scalar]) -> Scalar:
        """The scalar at ``key``; StartupError where the file has no such key."""
        value = self.find(key, kind)
        if value is None:
            raise refuse(self.path, f"has no metadata `{key}`", CONVERT_AGAIN)
        return value

    def find_of_model(self, key: str, kind: type[Scalar]) -> Scalar | None:
        """``find`` below the architecture's prefix: ``rope.freq_base`` means ``llama.rope.freq_base``."""
        return self.find(f"{self.architecture}.{key}", kind)

    def need_of_model(self, key: str, kind: type[Scalar]) -> Scalar:
        """``need`` below the architecture's prefix."""
        return self.need(f"{self.architecture}.{key}", kind)

    def strings(self, key: str) -> list[str] | None:
        """The array of strings at ``key``."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, list):
            raise refuse(self.path, f"has no array of strings at `{key}`", CONVERT_AGAIN)
        return value

    def numbers(self, key: str) -> NDArray[Any] | None:
        """The array of numbers at ``key``."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, np.ndarray):
            raise refuse(self.path, f"has no array of numbers at `{key}`", CONVERT_AGAIN)
        return value

    def is_array(self, key: str) -> bool:
        """Whether ``key`` holds an array of numbers, where a scalar is possible too."""
        return isinstance(self._values.get(key), np.ndarray)
