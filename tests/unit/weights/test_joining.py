"""Parts of merged weights are put together, without a copy where they lie next to each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tgi_core.weights.checkpoint import Checkpoint
from tgi_core.weights.joining import join_rows


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Written in the order of the names."""
    tensors = {name: torch.randn(rows, 8) for name, rows in (("a", 3), ("b", 5), ("c", 2))}
    tensors["d"] = torch.randn(4)
    save_file(tensors, tmp_path / "model.safetensors")
    return Checkpoint.open(tmp_path)


@pytest.mark.parametrize("names", ["ab", "bc", "abc", "a"])
def test_neighbours_are_a_view_of_the_file(names: str, checkpoint: Checkpoint) -> None:
    parts = [checkpoint.tensor(name) for name in names]
    joined = join_rows(parts)
    assert torch.equal(joined, torch.cat(parts))
    assert joined.data_ptr() == parts[0].data_ptr()
    assert joined.is_contiguous()


@pytest.mark.parametrize("names", ["ac", "ba", "cab", "aa"])
def test_others_are_copied(names: str, checkpoint: Checkpoint) -> None:
    parts = [checkpoint.tensor(name) for name in names]
    joined = join_rows(parts)
    assert torch.equal(joined, torch.cat(parts))
    assert all(joined.data_ptr() != part.data_ptr() for part in parts)


def test_what_only_looks_like_neighbours_is_copied(checkpoint: Checkpoint) -> None:
    whole = torch.arange(24.0).view(4, 6)
    for parts in ([whole[:2, :3], whole[2:, :3]], [whole[:2].t(), whole[2:].t()], [torch.ones(2), torch.zeros(2)]):
        joined = join_rows(parts)
        assert torch.equal(joined, torch.cat(parts))
        joined.zero_()
        assert whole.sum() == 276
    biases = [checkpoint.tensor("d")[:2], checkpoint.tensor("d")[2:]]
    assert join_rows(biases).data_ptr() == biases[0].data_ptr()


def test_a_view_keeps_the_file_mapped(checkpoint: Checkpoint) -> None:
    parts = [checkpoint.tensor(name) for name in "ab"]
    expected = torch.cat(parts)
    joined = join_rows(parts)
    del parts, checkpoint
    assert torch.equal(joined, expected)
