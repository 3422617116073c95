"""Finding and reading safetensors weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tgi_core.errors import ExitCode, StartupError
from tgi_core.weights.checkpoint import Checkpoint

EMBEDDING = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
NORM = torch.ones(3)


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def refusal(folder: Path) -> StartupError:
    with pytest.raises(StartupError) as caught:
        Checkpoint.open(folder)
    assert caught.value.exit_code == ExitCode.MODEL
    assert caught.value.fix
    return caught.value


def test_single_file(tmp_path: Path) -> None:
    save_file({"embed": EMBEDDING, "norm": NORM}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.names == {"embed", "norm"}
    assert checkpoint.shape("embed") == (2, 3)
    assert checkpoint.total_bytes == 6 * 2 + 3 * 4
    assert torch.equal(checkpoint.tensor("embed"), EMBEDDING)
    assert checkpoint.tensor("embed").dtype == torch.bfloat16


def test_shards_of_an_index(tmp_path: Path) -> None:
    save_file({"embed": EMBEDDING}, tmp_path / "model-1.safetensors")
    save_file({"norm": NORM}, tmp_path / "model-2.safetensors")
    save_file({"other": NORM}, tmp_path / "unrelated.safetensors")
    write_index(tmp_path, {"embed": "model-1.safetensors", "norm": "model-2.safetensors"})
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.names == {"embed", "norm"}
    assert checkpoint.total_bytes == 6 * 2 + 3 * 4
    assert torch.equal(checkpoint.tensor("norm"), NORM)


def test_several_files_without_an_index_leave_out_training_arguments(tmp_path: Path) -> None:
    save_file({"embed": EMBEDDING}, tmp_path / "a.safetensors")
    save_file({"norm": NORM}, tmp_path / "b.safetensors")
    for name in ("training_state", "my_args", "arguments"):
        save_file({name: NORM}, tmp_path / f"{name}.safetensors")
    assert Checkpoint.open(tmp_path).names == {"embed", "norm"}


def test_one_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    save_file({"norm": NORM}, tmp_path / "a.safetensors")
    save_file({"norm": NORM}, tmp_path / "b.safetensors")
    assert "Both a.safetensors and b.safetensors" in refusal(tmp_path).cause


def test_missing_shard_is_named(tmp_path: Path) -> None:
    save_file({"embed": EMBEDDING}, tmp_path / "model-1.safetensors")
    write_index(tmp_path, {"embed": "model-1.safetensors", "norm": "model-2.safetensors"})
    assert "model-2.safetensors" in refusal(tmp_path).cause


def test_index_that_names_a_tensor_its_shard_lacks(tmp_path: Path) -> None:
    save_file({"embed": EMBEDDING}, tmp_path / "model-1.safetensors")
    write_index(tmp_path, {"norm": "model-1.safetensors"})
    assert "`norm` is in model-1.safetensors" in refusal(tmp_path).cause


def test_unreadable_index(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("{")
    assert "model.safetensors.index.json cannot be read" in refusal(tmp_path).cause


@pytest.mark.parametrize("cut", [4, 40, 150])
def test_truncated_file(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"embed": EMBEDDING, "norm": NORM}, path)
    path.write_bytes(path.read_bytes()[:cut])
    assert "model.safetensors is truncated" in refusal(tmp_path).cause


def test_missing_tensor_lists_names_like_it(tmp_path: Path) -> None:
    save_file({"model.embed_tokens.weight": EMBEDDING, "norm": NORM}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint.open(tmp_path)
    for question in (checkpoint.tensor, checkpoint.shape):
        with pytest.raises(StartupError, match=r"no tensor `embed_tokens.weight`.*model\.embed_tokens\.weight"):
            question("embed_tokens.weight")


def test_pickled_weights_only(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    error = refusal(tmp_path)
    assert "pytorch_model.bin" in error.cause
    assert error.fix == f"Convert them once: tgi-serve download-weights {tmp_path}"


def test_no_weights(tmp_path: Path) -> None:
    assert "has no weights" in refusal(tmp_path).cause


def test_a_tensor_stored_once_has_all_its_names(tmp_path: Path) -> None:
    save_file({"embed": EMBEDDING}, tmp_path / "model.safetensors", metadata={"head": "embed", "format": "pt"})
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.names == {"embed", "head"}
    assert torch.equal(checkpoint.tensor("head"), EMBEDDING)
    assert checkpoint.shape("head") == EMBEDDING.shape
    assert checkpoint.total_bytes == EMBEDDING.nbytes


def test_a_tensor_that_the_index_does_not_name(tmp_path: Path) -> None:
    save_file({"embed": EMBEDDING, "norm": NORM}, tmp_path / "model-1.safetensors")
    write_index(tmp_path, {"embed": "model-1.safetensors"})
    assert "model-1.safetensors holds a tensor `norm`" in refusal(tmp_path).cause


def test_a_file_whose_tensors_were_all_read_is_let_go_and_can_be_read_again(tmp_path: Path) -> None:
    for number, name in enumerate(("embed", "norm")):
        save_file({name: EMBEDDING}, tmp_path / f"{number}.safetensors")
    checkpoint = Checkpoint.open(tmp_path)
    checkpoint.tensor("embed")
    assert mapped(tmp_path) == ["1.safetensors"]
    assert torch.equal(checkpoint.tensor("embed"), EMBEDDING)
    kept = checkpoint.tensor("norm")
    assert mapped(tmp_path) == ["1.safetensors"]
    del kept
    assert mapped(tmp_path) == []


def mapped(folder: Path) -> list[str]:
    """The files of ``folder`` that are mapped into this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({Path(line.split()[-1]).name for line in lines if str(folder) in line})
