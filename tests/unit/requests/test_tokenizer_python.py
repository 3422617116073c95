"""Tokenizers that are Python code behind the interface of fast ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.text_tokenizers import byte_level_json, encode
from tgi_core.errors import StartupError, ValidationError
from tgi_core.model_folder import ModelFolder
from tgi_core.requests import IncrementalDetokenizer, TextTokenizer
from tgi_core.requests.tokenizer_python import PythonCodec, describe_python, grammar_obstacle, open_tokenizer
from tgi_core.weights.tokenizers.pretrained import PythonTokenizer

TEXT = "Grüße 😀 the fox"

CODE = '''
from transformers import PreTrainedTokenizer


class LettersTokenizer(PreTrainedTokenizer):
    """One token for each letter of ASCII."""

    model_input_names = ["input_ids"]

    @property
    def vocab_size(self):
        return 128

    def get_vocab(self):
        return {chr(number): number for number in range(128)} | self.added_tokens_encoder

    def _tokenize(self, text, **kwargs):
        return list(text)

    def _convert_token_to_id(self, token):
        return ord(token)

    def _convert_id_to_token(self, index):
        return chr(index)

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens)
'''


class Bytes:
    """As transformers' ByT5Tokenizer: a token for each byte behind three special ones, half characters are dropped."""

    all_special_tokens = ("<pad>", "</s>", "<unk>")
    all_special_ids = (0, 1, 2)
    model_max_length = 512

    def __len__(self) -> int:
        return 259

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [byte + 3 for byte in text.encode()] + [1] * add_special_tokens

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, **_: bool) -> str:
        special = ("", "", "") if skip_special_tokens else self.all_special_tokens
        parts = [bytes([number - 3]) if number > 2 else special[number].encode() for number in ids]
        return b"".join(parts).decode(errors="ignore")


@pytest.fixture
def tokenizer() -> Iterator[TextTokenizer]:
    made = TextTokenizer.of_codec(PythonCodec(PythonTokenizer(Bytes())))
    yield made
    made.close()


def folder_of(folder: Path, **settings: object) -> ModelFolder:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 300}))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return ModelFolder(folder)


def test_ids_and_special_tokens(tokenizer: TextTokenizer) -> None:
    ids = encode(tokenizer, TEXT)
    assert encode(tokenizer, TEXT, add_special_tokens=True) == [*ids, 1]
    assert tokenizer.prefix_ids == ()
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.token_text(1) == "</s>"
    assert tokenizer.token_text(5000) == ""
    assert tokenizer.decode([*ids, 1], skip_special_tokens=True) == TEXT
    with pytest.raises(ValidationError):
        encode(tokenizer, "\ud800")


def test_characters_come_with_the_token_that_completes_them(tokenizer: TextTokenizer) -> None:
    push = IncrementalDetokenizer(tokenizer).push
    pieces = [push(token_id) for token_id in encode(tokenizer, TEXT)]
    assert "".join(pieces) == TEXT
    assert pieces[:4] == ["G", "r", "", "ü"]
    assert pieces[8:12] == ["", "", "", "😀"]


def test_spans_lie_where_the_text_of_a_token_is(tokenizer: TextTokenizer) -> None:
    spans = asyncio.run(tokenizer.encode_with_offsets("aü b", True))
    assert [(span.text, span.start, span.stop) for span in spans] == [
        ("a", 0, 1),
        ("", 1, 1),
        ("ü", 1, 3),
        (" ", 3, 4),
        ("b", 4, 5),
        ("", 0, 0),
    ]


def test_grammars_are_impossible_and_a_start_says_so(tokenizer: TextTokenizer) -> None:
    assert "Python code" in grammar_obstacle(tokenizer)
    assert "`Bytes` is Python code: one thread" in describe_python(tokenizer)


def test_a_fast_tokenizer_is_preferred(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, tokenizer_class="ByT5Tokenizer")
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    tokenizer = open_tokenizer(folder, workers=1, trust_remote_code=False)
    tokenizer.close()
    assert describe_python(tokenizer) == grammar_obstacle(tokenizer) == ""


def test_a_class_of_transformers(tmp_path: Path) -> None:
    tokenizer = open_tokenizer(folder_of(tmp_path, tokenizer_class="ByT5Tokenizer"), workers=4, trust_remote_code=False)
    ids = encode(tokenizer, TEXT, add_special_tokens=True)
    push = IncrementalDetokenizer(tokenizer).push
    tokenizer.close()
    assert ids == Bytes().encode(TEXT, True)
    assert "".join(push(token_id) for token_id in ids[:-1]) == TEXT


def test_code_of_the_folder_runs_only_when_it_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    (tmp_path / "tokenization_letters.py").write_text(CODE)
    auto_map = {"AutoTokenizer": ["tokenization_letters.LettersTokenizer", None]}
    folder = folder_of(tmp_path, tokenizer_class="LettersTokenizer", auto_map=auto_map, eos_token="~")
    with pytest.raises(StartupError, match="only with --trust-remote-code"):
        open_tokenizer(folder, workers=1, trust_remote_code=False)
    tokenizer = open_tokenizer(folder, workers=1, trust_remote_code=True)
    tokenizer.close()
    assert encode_now(tokenizer, "fox") == [ord(letter) for letter in "fox"]
    assert tokenizer.decode([102, 111, 120], skip_special_tokens=False) == "fox"
    assert tokenizer.special_token_ids["~"] == ord("~")


def test_a_folder_without_any_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"has no tokenizer\.json") as caught:
        open_tokenizer(folder_of(tmp_path), workers=1, trust_remote_code=True)
    assert caught.value.fix


def test_a_tokenizer_that_transformers_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="transformers cannot read its tokenizer"):
        open_tokenizer(folder_of(tmp_path, tokenizer_class="NoSuchTokenizer"), workers=1, trust_remote_code=False)


def encode_now(tokenizer: TextTokenizer, text: str) -> list[int]:
    return tokenizer.codec.encode(text, False)
