"""Tokenizers in other forms than ``tokenizer.json``: what they become, compared with the libraries they come from."""

from __future__ import annotations

import base64
import io
import json
import logging
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sentencepiece
import tiktoken
from tokenizers import Tokenizer

from tests.support.real_tokenizers import package_folder
from tests.support.text_tokenizers import CORPUS, byte_level_json
from tgi_core.errors import ExitCode, StartupError
from tgi_core.weights.progress import no_progress
from tgi_core.weights.serving import servable_folder
from tgi_core.weights.tokenizers import ranks as of_ranks
from tgi_core.weights.tokenizers.convert import convert_tokenizer
from tgi_core.weights.tokenizers.files import TokenizerKind, TokenizerSettings, TokenizerSource, find_source
from tgi_core.weights.tokenizers.sentencepiece import sentencepiece_tokenizer
from tgi_core.weights.tokenizers.sentencepiece_model import read_sentencepiece
from tgi_core.weights.tokenizers.verify import of_sentencepiece, verify

LLAMA = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
TEXTS = ("the fox 😀", " two  spaces ", "Grüße, 日本語", "x")


def folder_of(folder: Path, config: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A model folder without a tokenizer; ``settings`` are those of ``tokenizer_config.json``."""
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def train(file: Path, **how: Any) -> sentencepiece.SentencePieceProcessor:
    """Train a sentencepiece model and write it to ``file``."""
    model = io.BytesIO()
    usual = {"vocab_size": 400, "hard_vocab_limit": False, "minloglevel": 2, "num_threads": 1}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS * 3), model_writer=model, **usual | how)
    file.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_file=str(file))


def convert(folder: Path) -> Tokenizer:
    """Convert in this process, compare with the original, read the result."""
    source = find_source(folder)
    assert source is not None
    assert convert_tokenizer(source, folder, folder, no_progress) == ""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def write_ranks(folder: Path, name: str, count: int = 3000) -> dict[bytes, int]:
    """A file in tiktoken's form with the first ranks of a real vocabulary."""
    content = json.loads((package_folder("mistral_common") / "data" / "tekken_240911.json").read_bytes())
    pieces = {base64.b64decode(token["token_bytes"]): token["rank"] for token in content["vocab"][:count]}
    (folder / name).write_bytes(b"".join(b"%s %d\n" % (base64.b64encode(piece), pieces[piece]) for piece in pieces))
    return pieces


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_a_sentencepiece_model_keeps_its_ids_and_texts(tmp_path: Path, algorithm: str) -> None:
    original = train(folder_of(tmp_path) / "tokenizer.model", model_type=algorithm, **LLAMA)
    tokenizer = convert(tmp_path)
    for text in TEXTS:
        ids = original.encode(text)
        assert tokenizer.encode(text).ids == [original.bos_id(), *ids]
        assert tokenizer.decode(ids, skip_special_tokens=False) == text == original.decode(ids)
    assert tokenizer.get_added_tokens_decoder()[2].special


def test_who_adds_no_space_in_front(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, tokenizer_class="GemmaTokenizer", add_bos_token=False, add_eos_token=True)
    own = ["<start_of_turn>", "▁▁", "▁▁▁"]
    original = train(folder / "tokenizer.model", add_dummy_prefix=False, user_defined_symbols=own, **LLAMA)
    tokenizer = convert(folder)
    text = "the   fox <start_of_turn>  x"
    assert tokenizer.encode(text).ids == [*original.encode(text), original.eos_id()]


def test_symbols_of_the_users_do_not_begin_a_text_anew(tmp_path: Path) -> None:
    original = train(folder_of(tmp_path) / "tokenizer.model", user_defined_symbols=["[DOC]"], model_type="bpe", **LLAMA)
    text = "the [DOC] fox[DOC]x"
    assert convert(tmp_path).encode(text, add_special_tokens=False).ids == original.encode(text)


def test_a_text_goes_on_behind_a_special_token_unless_that_is_legacy(tmp_path: Path) -> None:
    train(folder_of(tmp_path, legacy=False) / "tokenizer.model", model_type="bpe", **LLAMA)
    assert convert(tmp_path).encode("<s>the", add_special_tokens=False).tokens[:2] == ["<s>", "t"]
    folder_of(tmp_path, legacy=True)
    assert convert(tmp_path).encode("<s>the", add_special_tokens=False).tokens[1].startswith("▁")


def test_t5_normalizes_ends_with_eos_and_has_sentinels(tmp_path: Path) -> None:
    original = train(folder_of(tmp_path, {"model_type": "t5"}) / "spiece.model", model_type="unigram")
    tokenizer = convert(tmp_path)
    text = "  the   ﬁne fox "
    assert tokenizer.encode(text).ids == [*original.encode(text), original.eos_id()]
    size = original.get_piece_size()
    assert tokenizer.token_to_id("<extra_id_99>") == size
    assert tokenizer.encode("the<extra_id_0>").ids[-2:] == [size + 99, original.eos_id()]


@pytest.mark.parametrize(
    "name",
    [
        "mistral_instruct_tokenizer_240323.model.v3",
        pytest.param("tokenizer.model.v1", marks=pytest.mark.slow),
        pytest.param("mistral_instruct_tokenizer_241114.model.v7m1", marks=pytest.mark.slow),
    ],
)
def test_models_that_are_in_use(tmp_path: Path, name: str) -> None:
    file = package_folder("mistral_common") / "data" / name
    (folder_of(tmp_path) / "tokenizer.model").write_bytes(file.read_bytes())
    tokenizer = convert(tmp_path)
    assert tokenizer.encode("Hello").ids[0] == 1
    original = sentencepiece.SentencePieceProcessor(model_file=str(file))
    assert tokenizer.get_vocab_size() == original.get_piece_size()


def test_a_kind_of_sentencepiece_without_fast_form(tmp_path: Path) -> None:
    train(folder_of(tmp_path) / "tokenizer.model", model_type="char")
    with pytest.raises(StartupError, match="of kind char has no fast form"):
        convert(tmp_path)


def test_tekken_has_its_special_tokens_in_front(tmp_path: Path) -> None:
    content = json.loads((package_folder("mistral_common") / "data" / "tekken_240911.json").read_bytes())
    content["vocab"] = content["vocab"][:3000]
    content["config"]["default_vocab_size"] = 3500
    (folder_of(tmp_path) / "tekken.json").write_text(json.dumps(content))
    tokenizer = convert(tmp_path)
    pieces = {base64.b64decode(token["token_bytes"]): token["rank"] for token in content["vocab"][:2500]}
    original = tiktoken.Encoding("x", pat_str=content["config"]["pattern"], mergeable_ranks=pieces, special_tokens={})
    for text in TEXTS:
        assert tokenizer.encode(text).ids == [1, *(1000 + rank for rank in original.encode(text))]
    assert tokenizer.encode("[INST]x[/INST]", add_special_tokens=False).ids[::2] == [3, 4]
    assert tokenizer.get_vocab_size() == 3500


def test_ranks_of_qwen(tmp_path: Path) -> None:
    pieces = write_ranks(folder_of(tmp_path, {"model_type": "qwen"}, tokenizer_class="QWenTokenizer"), "qwen.tiktoken")
    tokenizer = convert(tmp_path)
    original = tiktoken.Encoding("x", pat_str=of_ranks.QWEN_PATTERN, mergeable_ranks=pieces, special_tokens={})
    assert tokenizer.encode("e\u0301 12").ids == original.encode("é 12")
    assert tokenizer.encode("<|im_start|>x").ids[0] == len(pieces) + 1


def test_ranks_of_llama_3_take_special_tokens_from_the_settings(tmp_path: Path) -> None:
    named = {"3000": "<|begin_of_text|>", "3004": "<|eot_id|>"}
    added = {number: {"content": text, "special": True} for number, text in named.items()}
    write_ranks(folder_of(tmp_path, added_tokens_decoder=added, bos_token="<|begin_of_text|>"), "tokenizer.model")
    tokenizer = convert(tmp_path)
    assert tokenizer.encode("x<|eot_id|>").ids[::2] == [3000, 3004]
    folder_of(tmp_path)
    with pytest.raises(StartupError, match="does not name the special tokens"):
        convert(tmp_path)


def test_ranks_of_kimi_cut_chinese_from_latin(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"model_type": "kimi_k2"}, tokenizer_class="TikTokenTokenizer", auto_map={"x": "y"})
    write_ranks(folder, "tiktoken.model")
    cutter: Any = convert(tmp_path).pre_tokenizer
    assert [span for _, span in cutter.pre_tokenize_str("中文English混合")] == [(0, 2), (2, 9), (9, 11)]


def test_ranks_of_an_unknown_model_have_no_fast_form(tmp_path: Path) -> None:
    write_ranks(folder_of(tmp_path, {"model_type": "mystery"}), "mystery.tiktoken")
    source = find_source(tmp_path)
    assert source is not None
    assert "in the model's code" in convert_tokenizer(source, tmp_path, tmp_path, no_progress)


def test_a_vocabulary_with_merges_goes_by_its_class(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"model_type": "bart"}, tokenizer_class="BartTokenizer")
    model = json.loads(byte_level_json())["model"]
    names = ["<pad>", "<unk>", "<mask>", *model["vocab"]]
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    pairs = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n")
    tokenizer = convert(folder)
    text = "the quick fox"
    assert tokenizer.encode(text).tokens == ["<s>", *Tokenizer.from_str(byte_level_json()).encode(text).tokens, "</s>"]


def test_a_conversion_that_differs_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.model"
    train(file, model_type="bpe", **LLAMA)
    model = msgspec.structs.replace(read_sentencepiece(file), adds_prefix=False)
    settings = TokenizerSettings("llama", "", False, {}, {})
    tokenizer = sentencepiece_tokenizer(model, settings)
    source = TokenizerSource(TokenizerKind.SENTENCEPIECE, file)
    with pytest.raises(StartupError, match=r"differs from its original: '.*' becomes .* and not") as caught:
        verify(tokenizer, of_sentencepiece(model, source, tokenizer, drops_first_space=False), source)
    assert caught.value.exit_code is ExitCode.MODEL


@pytest.mark.parametrize("library", ["sentencepiece", "tiktoken"])
def test_a_library_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    if library == "sentencepiece":
        train(folder_of(tmp_path) / "tokenizer.model", model_type="bpe", **LLAMA)
    else:
        write_ranks(folder_of(tmp_path), "qwen.tiktoken", 300)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(StartupError, match=f"package {library} is not installed") as caught:
        convert(tmp_path)
    assert f"pip install {library}" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.model", b"\n\xff"),
        ("tokenizer.model", b"\n\x02\x08\x01"),
        ("qwen.tiktoken", b"?? 1\n"),
        ("qwen.tiktoken", b"YQ== 1\nYg== 1\n"),
        ("tekken.json", b"{}"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    (folder_of(tmp_path) / name).write_bytes(content)
    with pytest.raises(StartupError, match=name.replace(".", r"\.")):
        convert(tmp_path)


def test_an_added_token_whose_id_is_taken(tmp_path: Path) -> None:
    added = {"5": {"content": "<extra>", "special": True}}
    train(folder_of(tmp_path, added_tokens_decoder=added) / "tokenizer.model", model_type="bpe", **LLAMA)
    with pytest.raises(StartupError, match="'<extra>' the id 5, but it is"):
        convert(tmp_path)


def test_a_start_converts_beside_the_weights_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(folder_of(tmp_path) / "tokenizer.model", model_type="bpe", **LLAMA)
    caplog.set_level(logging.INFO)
    assert servable_folder(tmp_path, tmp_path / "cache", no_progress) == tmp_path
    assert "was converted to" in caplog.text
    made = (tmp_path / "tokenizer.json").stat().st_mtime_ns
    servable_folder(tmp_path, tmp_path / "cache", no_progress)
    assert (tmp_path / "tokenizer.json").stat().st_mtime_ns == made
    assert not list(tmp_path.glob(".converting*"))


def test_a_folder_that_cannot_be_written_is_converted_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    train(folder_of(folder) / "tokenizer.model", model_type="bpe", **LLAMA)
    (folder / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr("tgi_core.weights.apart.convert_tokenizer_apart", convert_tokenizer)
    made = servable_folder(folder, tmp_path / "cache", no_progress)
    assert made.parent == tmp_path / "cache"
    assert (made / "model.safetensors").read_bytes() == b"weights"
    assert not (folder / "tokenizer.json").exists()
    assert Tokenizer.from_file(str(made / "tokenizer.json")).get_vocab_size()


def test_what_has_no_fast_form_stays_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tgi_core.weights.apart.convert_tokenizer_apart", convert_tokenizer)
    write_ranks(folder_of(tmp_path, {"model_type": "mystery"}), "mystery.tiktoken", 300)
    caplog.set_level(logging.INFO)
    assert servable_folder(tmp_path, tmp_path / "cache", no_progress) == tmp_path
    assert "has no fast form: how a text is cut" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tekken_240718.json", "tekken_240911.json"])
def test_whole_tekken_files(tmp_path: Path, name: str) -> None:
    (folder_of(tmp_path) / "tekken.json").write_bytes((package_folder("mistral_common") / "data" / name).read_bytes())
    assert convert(tmp_path).get_vocab_size() == 131_072
