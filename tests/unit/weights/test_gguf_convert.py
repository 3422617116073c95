"""The conversion of a GGUF file as a whole: cache, progress, refusals."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from tests.unit.weights.gguf_files import (
    add_byte_level_tokenizer,
    add_decoder,
    decoder_tensors,
    write_gguf,
    write_llama,
)
from tgi_core.errors import ExitCode, StartupError
from tgi_core.model_folder import ModelFolder
from tgi_core.weights.checkpoint import Checkpoint
from tgi_core.weights.gguf import convert_gguf


def refusal(path: Path, cache: Path) -> StartupError:
    with pytest.raises(StartupError) as caught:
        convert_gguf(path, cache)
    assert caught.value.exit_code == ExitCode.MODEL
    assert caught.value.fix
    return caught.value


def test_the_folder_answers_all_questions(tmp_path: Path) -> None:
    model = ModelFolder(convert_gguf(write_llama(tmp_path / "m.gguf"), tmp_path / "cache"))
    assert (model.model_type, model.vocab_size, model.dtype_name) == ("llama", 320, "float32")
    assert model.eos_token_ids == {1, 2}
    assert (model.bos_token, model.eos_token) == ("<s>", "</s>")
    assert model.chat_templates == {"default": "{{ messages }}<|im_end|>"}
    assert model.tokenizer_file.is_file()


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0"])
def test_anything_but_float32_becomes_bfloat16(tmp_path: Path, kind: str) -> None:
    number = gguf.GGMLQuantizationType[kind]
    tensors = decoder_tensors()
    path = write_gguf(tmp_path / "m.gguf", "llama", tensors, types={"blk.0.ffn_up.weight": number})
    folder = convert_gguf(path, tmp_path / "cache")
    checkpoint = Checkpoint.open(folder)
    assert ModelFolder(folder).dtype_name == "bfloat16"
    assert {checkpoint.tensor(name).dtype for name in checkpoint.names} == {torch.bfloat16}
    quantized = gguf.quants.quantize(tensors["blk.0.ffn_up.weight"], number)
    expected = torch.from_numpy(gguf.quants.dequantize(quantized, number)).to(torch.bfloat16)
    assert torch.equal(checkpoint.tensor("model.layers.0.mlp.up_proj.weight"), expected)


def test_large_tensors_are_converted_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_llama(tmp_path / "m.gguf")
    whole = Checkpoint.open(convert_gguf(path, tmp_path / "whole"))
    monkeypatch.setattr("tgi_core.weights.gguf.convert._CHUNK_VALUES", 100)
    pieces = Checkpoint.open(convert_gguf(path, tmp_path / "pieces"))
    assert all(torch.equal(whole.tensor(name), pieces.tensor(name)) for name in whole.names)


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    folder = convert_gguf(
        write_llama(tmp_path / "m.gguf"),
        tmp_path / "cache",
        lambda description, done_bytes, total_bytes: seen.append((description, done_bytes, total_bytes)),
    )
    done = [done_bytes for _, done_bytes, _ in seen]
    assert done == sorted(done)
    assert seen[-1] == ("Converting m.gguf", Checkpoint.open(folder).total_bytes, done[-1])


def test_the_second_call_finds_the_result(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf")
    folder = convert_gguf(path, tmp_path / "cache")
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert convert_gguf(path, tmp_path / "cache") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    os.utime(path, ns=(0, 0))
    assert convert_gguf(path, tmp_path / "cache") != folder


def test_without_weights_everything_else_is_there(tmp_path: Path) -> None:
    path, cache = write_llama(tmp_path / "m.gguf"), tmp_path / "cache"
    described = convert_gguf(path, cache, weights=False)
    assert ModelFolder(described).tokenizer_file.is_file()
    assert not list(described.glob("*.safetensors"))
    # The description is not taken for the model, and the model is as good a description.
    whole = convert_gguf(path, cache)
    assert (whole / "model.safetensors").is_file()
    assert convert_gguf(path, cache, weights=False) == whole


def test_conversions_at_the_same_time_agree(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf")
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: convert_gguf(path, tmp_path / "cache"), range(4)))
    assert len(folders) == 1
    assert list((tmp_path / "cache").iterdir()) == list(folders)
    assert Checkpoint.open(folders.pop()).names


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    tensors = decoder_tensors()
    del tensors["blk.0.ffn_up.weight"]
    path = write_gguf(tmp_path / "m.gguf", "llama", tensors)
    assert "lacks 1 tensors, such as `blk.0.ffn_up.weight`" in refusal(path, tmp_path / "cache").cause
    assert not list((tmp_path / "cache").iterdir())


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf")
    (tmp_path / "cache").write_text("a file where the folder should be")
    error = refusal(path, tmp_path / "cache")
    assert "cannot be written" in error.cause
    assert "TGI_SERVE_CACHE" in error.fix


def test_absent_file(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "m.gguf", tmp_path / "cache").cause


def test_unsupported_architecture(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "mamba", {"x": np.zeros(1, np.float32)})
    assert "architecture `mamba`; supported in GGUF are llama" in refusal(path, tmp_path / "cache").cause


def test_unsupported_quantization(tmp_path: Path) -> None:
    def integers(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("numbers", np.zeros(4, np.int32))

    path = write_gguf(tmp_path / "m.gguf", "llama", decoder_tensors(), [add_decoder, integers])
    assert "`numbers` in a type that cannot be read" in refusal(path, tmp_path / "cache").cause


def test_a_tensor_the_family_does_not_have(tmp_path: Path) -> None:
    tensors = decoder_tensors() | {"blk.0.ssm_in.weight": np.zeros((2, 2), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", "llama", tensors)
    assert "`blk.0.ssm_in.weight`, which the `llama` family does not" in refusal(path, tmp_path / "cache").cause


def test_heads_that_do_not_divide_the_rows(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf",
        "llama",
        decoder_tensors(),
        [lambda writer: add_decoder(writer, heads=5), add_byte_level_tokenizer],
    )
    assert "which 5 heads cannot share" in refusal(path, tmp_path / "cache").cause
