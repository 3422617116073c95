"""Reads a GGUF file's header and maps its tensors.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. The header is
parsed here because the gguf package's reader makes several arrays for every token of the vocabulary.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from tgi_core.weights.gguf.metadata import CONVERT_AGAIN, GgufMetadata, MetadataValue, refuse

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_FLOAT32, _STRING, _ARRAY = 6, 8, 9
_SCALAR_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class GgufTensor(msgspec.Struct, frozen=True):
    """Where a tensor lies.

    Attributes:
        name: llama.cpp's name.
        shape: row-major, as torch has it; the file stores it reversed.
        type: a ``gguf.GGMLQuantizationType``.
        start, size_bytes: place in the file.
    """

    name: str
    shape: tuple[int, ...]
    type: Any
    start: int
    size_bytes: int

    @property
    def size(self) -> int:
        """How many numbers the tensor has."""
        return math.prod(self.shape)


class GgufFile:
    """An open GGUF file.

    Attributes:
        path: the file.
        metadata: its key/value part.
        tensors: its tensors by name.
    """

    def __init__(self, path: Path) -> None:
        """Read the header.

        Raises:
            StartupError: the file cannot be read, is no GGUF file, is truncated, or uses what is not supported.
        """
        self.path = path
        try:
            self._bytes: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise refuse(path, f"cannot be read: {error}") from error
        cursor = _Cursor(path, self._bytes)
        tensor_count, value_count = _read_preamble(cursor)
        values: dict[str, MetadataValue] = {}
        for _ in range(value_count):
            cursor.reading = f"metadata entry {len(values) + 1} of {value_count}"
            key = cursor.string()
            values[key] = _read_value(cursor, key)
        self.metadata = GgufMetadata(path, values)
        if (self.metadata.find("split.count", int) or 1) > 1:
            raise refuse(path, "is one part of a split model", "Join the parts with llama-gguf-split --merge.")
        self.tensors = self._read_tensors(cursor, tensor_count)

    def raw_rows(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        """The tensor's bytes, still quantized, one row for each index of all but the last axis: [rows, row bytes].

        A vector is one row a number, so that rows may be reordered whatever the rank.
        """
        rows = math.prod(tensor.shape[:-1]) if len(tensor.shape) > 1 else tensor.shape[0]
        return self._bytes[tensor.start : tensor.start + tensor.size_bytes].reshape(rows, -1)

    def _read_tensors(self, cursor: _Cursor, count: int) -> dict[str, GgufTensor]:
        found: list[tuple[str, tuple[int, ...], Any, int]] = []
        for number in range(count):
            cursor.reading = f"the description of tensor {number + 1} of {count}"
            name = cursor.string()
            dimensions = cursor.unpack("I")
            if not 1 <= dimensions <= _MAX_DIMENSIONS:
                raise refuse(self.path, f"gives tensor `{name}` {dimensions} dimensions; the header is damaged")
            shape = tuple(reversed([cursor.unpack("Q") for _ in range(dimensions)]))
            found.append((name, shape, _known_type(self.path, name, cursor.unpack("I")), cursor.unpack("Q")))
        alignment = self.metadata.find("general.alignment", int) or _DEFAULT_ALIGNMENT
        data_start = math.ceil(cursor.position / alignment) * alignment
        tensors = {}
        for name, shape, kind, offset in found:
            block_size, block_bytes = GGML_QUANT_SIZES[kind]
            if math.prod(shape) == 0 or shape[-1] % block_size:
                raise refuse(self.path, f"gives tensor `{name}` of type {kind.name} the impossible shape {shape}")
            size_bytes = math.prod(shape) // block_size * block_bytes
            end = data_start + offset + size_bytes
            if end > len(self._bytes):
                raise refuse(
                    self.path, f"is truncated: tensor `{name}` ends at byte {end}, the file at {len(self._bytes)}"
                )
            tensors[name] = GgufTensor(name, shape, kind, data_start + offset, size_bytes)
        return tensors


class _Cursor:
    """A position in the header; every read checks that the file goes that far."""

    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self.path = path
        self.position = 0
        self.reading = "the header"
        self._view = data.data

    def take(self, size_bytes: int) -> memoryview:
        start, end = self.position, self.position + size_bytes
        if end > len(self._view):
            raise refuse(self.path, f"is truncated or damaged: it ends inside {self.reading}")
        self.position = end
        return self._view[start:end]

    def unpack(self, code: str) -> Any:
        form = "<" + code
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        raw = self.take(self.unpack("Q"))
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise refuse(self.path, f"has text that is not UTF-8 in {self.reading}") from error

    def strings(self, count: int) -> list[str]:
        if count * 8 > len(self._view) - self.position:
            raise refuse(self.path, f"is truncated or damaged: it ends inside {self.reading}")
        return [self.string() for _ in range(count)]


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    magic = bytes(cursor.take(4))
    if magic != _MAGIC:
        raise refuse(cursor.path, f"starts with {magic!r}, so it is no GGUF file", "Check the path.")
    version = cursor.unpack("I")
    if version not in _VERSIONS:
        big_endian = version & 0xFFFF == 0
        cause = "is big-endian" if big_endian else f"has version {version} of the format; known are 2 and 3"
        raise refuse(cursor.path, cause, CONVERT_AGAIN)
    return cursor.unpack("Q"), cursor.unpack("Q")


def _read_value(cursor: _Cursor, key: str) -> MetadataValue:
    cursor.reading = f"metadata `{key}`"
    kind = cursor.unpack("I")
    if kind != _ARRAY:
        return _read_scalar(cursor, kind)
    element, count = cursor.unpack("I"), cursor.unpack("Q")
    if element == _STRING:
        return cursor.strings(count)
    if element not in _SCALAR_FORMATS:
        raise refuse(cursor.path, f"has an array of unknown type {element} at `{key}`", CONVERT_AGAIN)
    dtype = np.dtype("<" + _SCALAR_FORMATS[element])
    return np.frombuffer(cursor.take(count * dtype.itemsize), dtype)


def _read_scalar(cursor: _Cursor, kind: int) -> MetadataValue:
    if kind == _STRING:
        return cursor.string()
    if kind not in _SCALAR_FORMATS:
        raise refuse(cursor.path, f"has a value of unknown type {kind} in {cursor.reading}", CONVERT_AGAIN)
    value: bool | int | float = cursor.unpack(_SCALAR_FORMATS[kind])
    # The shortest decimal that is this float32: 1e-05, not 9.999999747378752e-06.
    return float(str(np.float32(value))) if kind == _FLOAT32 else value


def _known_type(path: Path, name: str, number: int) -> Any:
    try:
        kind = GGMLQuantizationType(number)
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except (ValueError, NotImplementedError) as error:
        raise refuse(
            path, f"stores tensor `{name}` in a type that cannot be read: {error}", "Use another quantization."
        ) from error
    return kind
