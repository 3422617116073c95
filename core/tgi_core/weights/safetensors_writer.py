"""Writes a safetensors file piece by piece, so that a model need not fit into memory twice.

Format: https://huggingface.co/docs/safetensors, a little-endian 64-bit header length, a JSON header, the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

ITEM_BYTES: Mapping[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "F32": 4,
    "I64": 8,
    "F64": 8,
}
"""Bytes of a number by the format's name of its dtype."""


class TensorEntry(msgspec.Struct, frozen=True):
    """One tensor of the file: its name, the format's name of its dtype (a key of ``ITEM_BYTES``) and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor's data."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def write_safetensors(
    path: Path,
    entries: Sequence[TensorEntry],
    chunks: Iterable[NDArray[Any]],
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write ``entries`` with the data of ``chunks``, which follow each other in the order of the entries.

    ``metadata`` goes into the header beside ``format``.

    Raises:
        ValueError: the chunks do not add up to the entries.
        OSError: the file cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": {**(metadata or {}), "format": "pt"}}
    end = 0
    for entry in entries:
        start, end = end, end + entry.size_bytes
        header[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": (start, end)}
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % 8)
    written = 0
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for chunk in chunks:
            file.write(np.ascontiguousarray(chunk).data)
            written += chunk.nbytes
    if written != end:
        raise ValueError(f"the tensors need {end} bytes of data, the chunks had {written}")
