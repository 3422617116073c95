"""One safetensors file: what its header says, and its tensors out of the mapped file.

Format: https://huggingface.co/docs/safetensors, a little-endian 64-bit header length, a JSON header, the data.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from safetensors import SafetensorError, safe_open

from tgi_core.errors import ExitCode, StartupError

if TYPE_CHECKING:
    import torch

_PIECE_BYTES = 16 << 20
"""Of one advice: the system takes longer ones in part only."""

_LENGTH_BYTES = 8

_DTYPES: Mapping[str, str] = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
}
"""The format's name of a dtype and torch's."""

DOWNLOAD_AGAIN = "Download or copy the model again."


class _Entry(msgspec.Struct, frozen=True):
    """What the header says of a tensor; offsets count from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class WeightFile:
    """The tensors of one file. Mapped while some of them have not been read; tensors that live on keep it mapped.

    Tensors are views of the mapped file: two that lie next to each other there do so in memory.

    Attributes:
        path: the file.
        names: its tensors, also under the names that its metadata gives to a tensor stored once for several.
        data_bytes: size of all tensors.

    Raises:
        StartupError: it is truncated or no safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._mapped: torch.Tensor | None = None
        self._entries, metadata, self._data_start = _read_header(path)
        stored = self._entries.keys()
        self._owners = {name: owner for name, owner in metadata.items() if owner in stored and name not in stored}
        self.names = stored | self._owners.keys()
        self._unread = set(stored)
        self.data_bytes = sum(end - start for start, end in (entry.data_offsets for entry in self._entries.values()))

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor called ``name``, a view of the mapped file.

        Raises:
            StartupError: it cannot be read.
        """
        import torch

        entry = self._entry(name)
        if entry.dtype not in _DTYPES:
            raise StartupError(
                f"Tensor `{name}` in {self.path} is of the type {entry.dtype}, which is not known here.",
                "Serve a version of the model in another type.",
                ExitCode.MODEL,
            )
        start, end = entry.data_offsets
        data = self._bytes_for(self._owners.get(name, name))[self._data_start + start : self._data_start + end]
        dtype: torch.dtype = getattr(torch, _DTYPES[entry.dtype])
        if data.storage_offset() % dtype.itemsize:
            # Files of other writers may leave a tensor between two of its numbers.
            data = data.clone()
        return data.view(dtype).view(entry.shape)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the tensor called ``name``, from the header."""
        return self._entry(name).shape

    def dtype(self, name: str) -> str:
        """The format's name of the dtype of the tensor called ``name``, from the header."""
        return self._entry(name).dtype

    def size_bytes(self, name: str) -> int:
        """Data of the tensor called ``name``."""
        start, end = self._entry(name).data_offsets
        return end - start

    def read_ahead(self) -> None:
        """Have the system read the whole file into its cache; returns when all of it is on its way."""
        if not hasattr(os, "posix_fadvise"):
            return
        # It is advice: what is wrong with the file shows when a tensor is read.
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            for start in range(0, os.fstat(file.fileno()).st_size, _PIECE_BYTES):
                if not _is_cached(file.fileno(), start):
                    os.posix_fadvise(file.fileno(), start, _PIECE_BYTES, os.POSIX_FADV_WILLNEED)

    def _entry(self, name: str) -> _Entry:
        return self._entries[self._owners.get(name, name)]

    def _bytes_for(self, stored_name: str) -> torch.Tensor:
        """All bytes of the file, mapped; forgotten here once every tensor has been asked for."""
        with self._lock:
            mapped = self._map() if self._mapped is None else self._mapped
            self._unread.discard(stored_name)
            self._mapped = mapped if self._unread else None
        return mapped

    def _map(self) -> torch.Tensor:
        import torch

        try:
            size_bytes = self.path.stat().st_size
            if size_bytes < self._data_start + self.data_bytes:
                raise OSError("it has become shorter")
            return torch.from_file(str(self.path), shared=False, size=size_bytes, dtype=torch.uint8)
        except (OSError, RuntimeError) as error:
            raise StartupError(f"{self.path} cannot be read: {error}.", DOWNLOAD_AGAIN, ExitCode.MODEL) from error


def _is_cached(descriptor: int, start: int) -> bool:
    """Whether the system has the byte at ``start``; advice on what it has costs a walk over all of its pages."""
    try:
        return bool(os.preadv(descriptor, [bytearray(1)], start, os.RWF_NOWAIT))
    except (AttributeError, OSError):
        return False


def _read_header(path: Path) -> tuple[dict[str, _Entry], dict[str, str], int]:
    """The tensors, the metadata, and where the data begin."""
    try:
        with safe_open(str(path), framework="np"):
            # The library proves that the tensors fill the file and do not overlap.
            pass
        with path.open("rb") as file:
            length_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            header: dict[str, Any] = msgspec.json.decode(file.read(length_bytes))
        metadata = header.pop("__metadata__", None) or {}
        entries = msgspec.convert(header, dict[str, _Entry])
    except (SafetensorError, OSError, msgspec.MsgspecError) as error:
        raise StartupError(
            f"{path} is truncated or no safetensors file: {error}.", DOWNLOAD_AGAIN, ExitCode.MODEL
        ) from error
    return entries, metadata, _LENGTH_BYTES + length_bytes
