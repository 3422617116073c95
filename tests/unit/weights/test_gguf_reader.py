"""Reading GGUF files, sound and damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.unit.weights.gguf_files import decoder_tensors, metadata_of, write_gguf, write_llama
from tgi_core.errors import ExitCode, StartupError
from tgi_core.weights.gguf.reader import GgufFile


def refusal(path: Path) -> StartupError:
    with pytest.raises(StartupError) as caught:
        GgufFile(path)
    assert str(path) in caught.value.cause
    assert caught.value.exit_code == ExitCode.MODEL
    assert caught.value.fix
    return caught.value


def every_kind(writer: gguf.GGUFWriter) -> None:
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -1)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -2)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -3)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -4)
    writer.add_float32("f32", 1e-6)
    writer.add_float64("f64", 1e-6)
    writer.add_bool("bool", True)
    writer.add_string("text", "süß")
    writer.add_array("texts", ["a", "", "漢字"])
    writer.add_array("ints", [1, -2])
    writer.add_array("floats", [0.5, 1.5])
    writer.add_array("flags", [True, False])


def test_every_kind_of_metadata(tmp_path: Path) -> None:
    metadata = GgufFile(write_gguf(tmp_path / "m.gguf", "llama", decoder_tensors(), [every_kind])).metadata
    assert metadata.architecture == "llama"
    integers = {"u8": 255, "i8": -1, "u16": 65535, "i16": -2, "u32": 2**32 - 1, "i32": -3, "u64": 2**63, "i64": -4}
    assert {key: metadata.need(key, int) for key in integers} == integers
    assert (metadata.need("f32", float), metadata.need("f64", float)) == (1e-6, 1e-6)
    assert metadata.need("bool", bool) is True
    assert metadata.need("text", str) == "süß"
    assert metadata.strings("texts") == ["a", "", "漢字"]
    for key, expected in (("ints", [1, -2]), ("floats", [0.5, 1.5]), ("flags", [True, False])):
        numbers = metadata.numbers(key)
        assert numbers is not None
        assert numbers.tolist() == expected


def test_tensors_are_found_as_the_package_finds_them(tmp_path: Path) -> None:
    types = {"blk.0.ffn_up.weight": gguf.GGMLQuantizationType.Q8_0}
    path = write_gguf(tmp_path / "m.gguf", "llama", decoder_tensors(), types=types)
    file, reference = GgufFile(path), gguf.GGUFReader(path)
    assert len(file.tensors) == len(reference.tensors)
    for tensor in reference.tensors:
        own = file.tensors[tensor.name]
        assert own.shape == tuple(reversed(tensor.shape.tolist()))
        assert own.type == tensor.tensor_type
        assert file.raw_rows(own).tobytes() == tensor.data.tobytes()


def test_metadata_of_the_wrong_type() -> None:
    metadata = metadata_of(llama__count=True, llama__size="x", llama__width=3, many=np.array([1]), names=["a"])
    for key, kind in (("count", int), ("size", int), ("width", str), ("absent", int)):
        with pytest.raises(StartupError, match=f"`llama.{key}`"):
            metadata.need_of_model(key, kind)
    with pytest.raises(StartupError, match="an array at `many`"):
        metadata.find("many", int)
    with pytest.raises(StartupError, match="no array of strings at `many`"):
        metadata.strings("many")
    with pytest.raises(StartupError, match="no array of numbers at `names`"):
        metadata.numbers("names")
    assert metadata.need_of_model("width", float) == 3.0


def test_not_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK\x03\x04 and more")
    assert "is no GGUF file" in refusal(path).cause


def test_empty_and_absent_files(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    assert "cannot be read" in refusal(path).cause
    path.touch()
    assert "cannot be read" in refusal(path).cause


@pytest.mark.parametrize("version", [1, 4])
def test_unknown_version(tmp_path: Path, version: int) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, 0))
    assert f"version {version}" in refusal(path).cause


def test_big_endian(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    assert "big-endian" in refusal(path).cause


def test_every_truncation_of_the_header_is_refused(tmp_path: Path) -> None:
    whole = write_llama(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "m.gguf"
    for end in range(4, 3000, 97):
        path.write_bytes(whole[:end])
        assert "truncated" in refusal(path).cause


def test_truncated_tensor_data(tmp_path: Path) -> None:
    whole = write_llama(tmp_path / "m.gguf")
    whole.write_bytes(whole.read_bytes()[:-100])
    assert "truncated: tensor `" in refusal(whole).cause


def test_a_length_that_cannot_be_is_not_allocated(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for element in (8, 4):
        value = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, element, 2**62)
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + value)
        assert "ends inside metadata `k`" in refusal(path).cause


def test_unknown_value_types(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for kind in (struct.pack("<I", 77), struct.pack("<IIQ", 9, 9, 0)):
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + kind)
        assert "unknown type" in refusal(path).cause


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"\xff")
    assert "not UTF-8" in refusal(path).cause


@pytest.mark.parametrize(
    ("dimensions", "kind", "cause"),
    [([32], 9999, "a type that cannot be read"), ([33], 8, "impossible shape"), ([1] * 5, 0, "5 dimensions")],
)
def test_tensors_that_cannot_be(tmp_path: Path, dimensions: list[int], kind: int, cause: str) -> None:
    path = tmp_path / "m.gguf"
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    tensor = struct.pack("<Q", 1) + b"t" + shape + struct.pack("<IQ", kind, 0)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor + bytes(256))
    assert cause in refusal(path).cause


def test_part_of_a_split_model(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", decoder_tensors(), [lambda w: w.add_uint16("split.count", 2)])
    assert "llama-gguf-split --merge" in refusal(path).fix
