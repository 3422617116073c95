"""One safetensors file: what its header says, and its tensors out of the mapped file."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from tgi_core.errors import ExitCode, StartupError

if TYPE_CHECKING:
    import torch

_PIECE_BYTES = 16 << 20
"""Of one advice: the system takes longer ones in part only."""

DOWNLOAD_AGAIN = "Download or copy the model again."


class WeightFile:
    """The tensors of one file. Mapped while some of them have not been read; tensors that live on keep it mapped.

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
        self._file: Any = self._open()
        stored = frozenset(self._file.keys())
        metadata = self._file.metadata() or {}
        self._owners = {name: owner for name, owner in metadata.items() if owner in stored and name not in stored}
        self.names = stored | self._owners.keys()
        self._unread = set(stored)
        self.data_bytes = _data_bytes(path)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor called ``name``, backed by the mapped file.

        Raises:
            StartupError: it cannot be read.
        """
        owner = self._owners.get(name, name)
        with self._lock:
            file = self._file or self._open()
            self._unread.discard(owner)
            self._file = file if self._unread else None
        try:
            tensor: torch.Tensor = file.get_tensor(owner)
        except (SafetensorError, RuntimeError, OSError) as error:
            raise StartupError(
                f"Tensor `{name}` in {self.path} cannot be read: {error}.", DOWNLOAD_AGAIN, ExitCode.MODEL
            ) from error
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the tensor called ``name``, from the header."""
        with self._lock:
            file = self._file or self._open()
        return tuple(file.get_slice(self._owners.get(name, name)).get_shape())

    def read_ahead(self) -> None:
        """Have the system read the whole file into its cache; returns when all of it is on its way."""
        if not hasattr(os, "posix_fadvise"):
            return
        # It is advice: what is wrong with the file shows when a tensor is read.
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            for start in range(0, os.fstat(file.fileno()).st_size, _PIECE_BYTES):
                os.posix_fadvise(file.fileno(), start, _PIECE_BYTES, os.POSIX_FADV_WILLNEED)

    def _open(self) -> Any:
        try:
            return safe_open(str(self.path), framework="pt")
        except (SafetensorError, OSError) as error:
            raise StartupError(
                f"{self.path} is truncated or no safetensors file: {error}.", DOWNLOAD_AGAIN, ExitCode.MODEL
            ) from error


def _data_bytes(path: Path) -> int:
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
    return path.stat().st_size - 8 - header_bytes
