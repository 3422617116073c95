"""The writer against the safetensors library's reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from tgi_core.weights.safetensors_writer import TensorEntry, write_safetensors


def test_the_library_reads_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    halves = np.array([0x3F80, 0x4000], np.uint16)
    entries = [TensorEntry("a", "F32", (2, 3)), TensorEntry("b", "BF16", (2,))]
    write_safetensors(path, entries, [matrix[:1], matrix[1:], halves])
    with safe_open(path, framework="pt") as file:
        assert torch.equal(file.get_tensor("a"), torch.from_numpy(matrix))
        assert torch.equal(file.get_tensor("b"), torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
        assert file.metadata() == {"format": "pt"}


def test_chunks_that_do_not_add_up_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="need 8 bytes of data, the chunks had 4"):
        write_safetensors(tmp_path / "x", [TensorEntry("a", "F32", (2,))], [np.zeros(1, np.float32)])
