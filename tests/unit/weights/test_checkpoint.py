"""Finding and reading safetensors weights."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tgi_core.errors import ExitCode, StartupError
from tgi_core.weights.checkpoint import Checkpoint

EMBEDDING = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
NORM = torch.ones(3)
DTYPES = [torch.bool, torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu]
DTYPES += [torch.uint16, torch.int16, torch.float16, torch.bfloat16, torch.uint32, torch.int32, torch.float32]
DTYPES += [torch.uint64, torch.int64, torch.float64]


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


def test_a_file_is_mapped_from_its_first_tensor_to_its_last(tmp_path: Path) -> None:
    for number in range(2):
        save_file({f"{number}.embed": EMBEDDING, f"{number}.norm": NORM}, tmp_path / f"{number}.safetensors")
    checkpoint = Checkpoint.open(tmp_path)
    assert mapped(tmp_path) == []
    checkpoint.tensor("0.embed")
    assert mapped(tmp_path) == ["0.safetensors"]
    checkpoint.tensor("0.norm")
    assert mapped(tmp_path) == []
    assert torch.equal(checkpoint.tensor("0.embed"), EMBEDDING)
    checkpoint.tensor("1.embed")
    kept = checkpoint.tensor("1.norm")
    assert mapped(tmp_path) == ["1.safetensors"]
    del kept
    assert mapped(tmp_path) == []


def test_tensors_of_any_writer(tmp_path: Path) -> None:
    """Of every type, between two numbers of their type, empty and without axes."""
    embedding = EMBEDDING.view(torch.int16).numpy().tobytes()
    header = {
        "byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "embed": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [1, 13]},
        "scale": {"dtype": "F32", "shape": [], "data_offsets": [13, 17]},
        "none": {"dtype": "F32", "shape": [0, 3], "data_offsets": [17, 17]},
    }
    encoded = json.dumps(header).encode()
    data = b"\x07" + embedding + struct.pack("<f", 0.5)
    (tmp_path / "model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.tensor("byte").tolist() == [7]
    assert torch.equal(checkpoint.tensor("embed"), EMBEDDING)
    assert checkpoint.tensor("scale").item() == 0.5
    assert checkpoint.tensor("none").shape == (0, 3)
    assert checkpoint.total_bytes == 17


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_is_read_as_safetensors_reads_it(dtype: torch.dtype, tmp_path: Path) -> None:
    stored = torch.arange(1, 25, dtype=torch.uint8).view(dtype) if dtype is not torch.bool else torch.ones(3) > 0
    save_file({"a": stored}, tmp_path / "model.safetensors")
    loaded = Checkpoint.open(tmp_path).tensor("a")
    assert loaded.dtype is dtype
    assert torch.equal(loaded.view(torch.uint8), stored.view(torch.uint8))


def test_a_file_that_became_shorter_is_refused(tmp_path: Path) -> None:
    save_file({"embed": EMBEDDING, "norm": NORM}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint.open(tmp_path)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(120)
    with pytest.raises(StartupError, match="shorter"):
        checkpoint.tensor("norm")


def mapped(folder: Path) -> list[str]:
    """The files of ``folder`` that are mapped into this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({Path(line.split()[-1]).name for line in lines if str(folder) in line})
