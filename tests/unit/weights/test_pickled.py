"""From torch's pickles to safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from tgi_core.errors import ExitCode, StartupError
from tgi_core.weights.checkpoint import Checkpoint
from tgi_core.weights.pickled import convert_pickled, find_pickled
from tgi_core.weights.resolve import resolve_model

EMBED = torch.arange(12.0).reshape(4, 3)
DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
FLOAT8S = 2
"""The last of the types, which the format before torch 1.6 does not know."""


def save(folder: Path, content: object, name: str = "pytorch_model.bin", **options: Any) -> Path:
    torch.save(content, folder / name, **options)
    return folder / name


def save_shards(folder: Path, shards: Mapping[str, Mapping[str, Tensor]]) -> None:
    for name, tensors in shards.items():
        save(folder, dict(tensors), name)
    weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def raw(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversions that save the seconds in which another process starts."""
    monkeypatch.setattr("tgi_core.weights.apart.convert_apart", convert_pickled)


def refusal(folder: Path) -> StartupError:
    with pytest.raises(StartupError) as caught:
        convert_pickled(find_pickled(folder), folder)
    assert caught.value.exit_code is ExitCode.MODEL
    assert not list(folder.glob("*.safetensors*"))
    assert not list(folder.glob(".converting*"))
    return caught.value


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_every_type_survives_bit_for_bit(tmp_path: Path, zipped: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for dtype in DTYPES if zipped else DTYPES[:-FLOAT8S]:
        bits = torch.randint(0, 256, (6, 8), dtype=torch.uint8, generator=generator)
        tensors[str(dtype)] = bits > 127 if dtype is torch.bool else bits.view(dtype)
    tensors |= {"scalar": torch.tensor(3.5), "empty": torch.empty(0, 4), "turned": EMBED.t(), "slice": EMBED[1:3]}
    save(tmp_path, tensors, _use_new_zipfile_serialization=zipped)
    convert_pickled(find_pickled(tmp_path), tmp_path)
    loaded = load_file(tmp_path / "model.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(raw(loaded[name]), raw(tensor)), name


def test_tied_tensors_are_stored_once_under_the_first_name(tmp_path: Path) -> None:
    head = torch.nn.Parameter(EMBED)
    save(tmp_path, {"embed.weight": EMBED, "lm_head.weight": head, "copy": EMBED.clone()})
    convert_pickled(find_pickled(tmp_path), tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == {"embed.weight", "copy"}
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.names == {"embed.weight", "lm_head.weight", "copy"}
    assert torch.equal(checkpoint.tensor("lm_head.weight"), EMBED)
    assert checkpoint.total_bytes == 2 * EMBED.nbytes


def test_shards_keep_their_division(tmp_path: Path) -> None:
    shards = {"pytorch_model-00001-of-00002.bin": {"a": EMBED}, "pytorch_model-00002-of-00002.bin": {"b": EMBED + 1}}
    save_shards(tmp_path, shards)
    seen: list[tuple[int, int]] = []
    convert_pickled(find_pickled(tmp_path), tmp_path, lambda text, done, total: seen.append((done, total)))
    checkpoint = Checkpoint.open(tmp_path)
    assert [checkpoint.file_name(name) for name in ("a", "b")] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert torch.equal(checkpoint.tensor("b"), EMBED + 1)
    done = [done_bytes for done_bytes, _ in seen]
    assert done == sorted(done)
    assert seen[-1][0] == seen[-1][1]


def test_which_files_are_weights(tmp_path: Path) -> None:
    assert find_pickled(tmp_path) == []
    for name in ("optimizer.pt", "training_args.bin", "rng_state_0.pth", "scheduler.pt", "consolidated.00.pth", "b.pt"):
        (tmp_path / name).touch()
    assert [path.name for path in find_pickled(tmp_path)] == ["b.pt"]
    (tmp_path / "pytorch_model.bin").touch()
    assert [path.name for path in find_pickled(tmp_path)] == ["pytorch_model.bin"]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_program_is_no_weights(tmp_path: Path) -> None:
    """As the ``model.pt`` of a model that a vendor's library has compiled."""
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "model.pt")
    assert find_pickled(tmp_path) == []


class Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.proof),)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_a_malicious_pickle_does_not_run(tmp_path: Path, zipped: bool) -> None:
    proof = tmp_path / "it ran"
    save(tmp_path, {"a": EMBED, "b": Malicious(proof)}, _use_new_zipfile_serialization=zipped)
    error = refusal(tmp_path)
    assert "pytorch_model.bin holds more than tensors" in error.cause
    assert "mkdir`" in error.cause
    assert "Nothing of the file was run" in error.fix
    assert not proof.exists()


@pytest.mark.parametrize("cut", [0, 3, 100, 600, -10])
def test_a_truncated_pickle(tmp_path: Path, cut: int) -> None:
    path = save(tmp_path, {"a": torch.zeros(1000)})
    path.write_bytes(path.read_bytes()[:cut])
    assert "pytorch_model.bin is truncated or no file of torch's" in refusal(tmp_path).cause


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([EMBED], "holds no tensors by name, but a list"),
        ({"epoch": 3}, "holds a int at `epoch`"),
        ({"a": EMBED.to_sparse()}, "`a` that is not a plain array"),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, "`a` of type torch.complex64"),
    ],
)
def test_other_contents(tmp_path: Path, content: object, told: str) -> None:
    save(tmp_path, content)
    assert told in refusal(tmp_path).cause


def test_indexes_that_are_wrong(tmp_path: Path) -> None:
    save_shards(tmp_path, {"x-1.bin": {"a": EMBED}, "x-2.bin": {"b": EMBED}})
    index = tmp_path / "pytorch_model.bin.index.json"
    right = json.loads(index.read_text())["weight_map"]
    for change, told in (
        ({"c": "x-2.bin"}, "`c` is in"),
        ({"b": "x-1.bin", "a": "x-2.bin"}, "says that the tensor `b` is in"),
        ({"c": "x-3.bin"}, "missing: x-3.bin"),
    ):
        index.write_text(json.dumps({"weight_map": right | change}))
        assert told in refusal(tmp_path).cause
    save(tmp_path, {"b": EMBED, "surplus": EMBED}, "x-2.bin")
    index.write_text(json.dumps({"weight_map": right}))
    assert "x-2.bin holds a tensor `surplus`" in refusal(tmp_path).cause
    index.write_text("{")
    assert "index.json cannot be read" in refusal(tmp_path).cause


def model_folder(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("tokens")
    save(folder, {"a": EMBED})
    return folder


def test_a_folder_is_converted_once_beside_the_originals(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    assert resolve_model(str(folder), weights=False) == folder
    assert not (folder / "model.safetensors").exists()
    steps: list[str] = []
    assert resolve_model(str(folder), progress=lambda text, done, total: steps.append(text)) == folder
    assert torch.equal(Checkpoint.open(folder).tensor("a"), EMBED)
    assert set(steps) == {"Converting pytorch_model.bin"}
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert resolve_model(str(folder)) == folder


@pytest.mark.usefixtures("in_process")
def test_a_folder_that_cannot_be_written_is_converted_into_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_folder(tmp_path / "model")
    # Permissions do not stop the superuser, whom tests may run as.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    converted = resolve_model(str(folder), cache_dir=tmp_path / "cache")
    assert converted.parent == tmp_path / "cache"
    assert (converted / "tokenizer.json").read_text() == "tokens"
    assert torch.equal(Checkpoint.open(converted).tensor("a"), EMBED)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "pytorch_model.bin", "tokenizer.json"]
    assert resolve_model(str(folder), cache_dir=tmp_path / "cache") == converted
    save(folder, {"a": EMBED + 1, "b": EMBED})
    again = resolve_model(str(folder), cache_dir=tmp_path / "cache")
    assert torch.equal(Checkpoint.open(again).tensor("a"), EMBED + 1)


def test_refusals_of_a_conversion_reach_the_caller(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(b"nothing")
    with pytest.raises(StartupError, match=r"pytorch_model.bin is truncated") as caught:
        resolve_model(str(folder))
    assert caught.value.fix == "Download or copy the model again."


@pytest.mark.usefixtures("in_process")
def test_shards_of_an_unfinished_conversion_are_made_again(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_shards(tmp_path, {"x-1.bin": {"a": EMBED}, "x-2.bin": {"b": EMBED}})
    convert_pickled(find_pickled(tmp_path), tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    resolve_model(str(tmp_path))
    assert Checkpoint.open(tmp_path).names == {"a", "b"}


@pytest.mark.usefixtures("in_process")
def test_weights_of_one_folder_with_the_description_of_another(tmp_path: Path) -> None:
    description = model_folder(tmp_path / "description")
    weights = tmp_path / "weights"
    weights.mkdir()
    save(weights, {"other": EMBED})
    options: dict[str, Any] = {"cache_dir": tmp_path / "cache", "weights_dir": weights}
    folder = resolve_model(str(description), **options)
    assert (folder / "config.json").read_text() == "{}"
    assert Checkpoint.open(folder).names == {"other"}
    assert not (description / "model.safetensors").exists()
    assert resolve_model(str(description), **options) == folder
