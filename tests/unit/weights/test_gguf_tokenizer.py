"""Tokenizers of GGUF files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from tests.unit.weights.gguf_files import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    byte_alphabet,
    metadata_of,
    write_llama,
)
from tgi_core.errors import StartupError
from tgi_core.weights.gguf import convert_gguf
from tgi_core.weights.gguf.metadata import GgufMetadata, MetadataValue
from tgi_core.weights.gguf.tokenizer import build_tokenizer, tokenizer_config

TEXTS = [
    "hello World",
    "a  b\n\n\tdef f(x): return x+12345",
    "😀 👩‍👩‍👧 ünï 漢字 مرحبا",
    " lead trail ",
    "don't I'LL",
    "",
]


def byte_level(pre: str | None = "smollm", architecture: str = "llama", **values: MetadataValue) -> GgufMetadata:
    tokens = ["<s>", "</s>", *byte_alphabet(), "he", "ll", "hell", "hello", "12", "123", "<tool>"]
    settings: dict[str, MetadataValue] = {
        "tokenizer__ggml__model": "gpt2",
        "tokenizer__ggml__tokens": tokens,
        "tokenizer__ggml__token_type": np.array([CONTROL] * 2 + [NORMAL] * (len(tokens) - 3) + [USER_DEFINED]),
        "tokenizer__ggml__merges": ["h e", "l l", "he ll", "hell o", "1 2", "12 3"],
        "tokenizer__ggml__bos_token_id": 0,
        "tokenizer__ggml__eos_token_id": 1,
        "llama__context_length": 64,
    }
    if pre is not None:
        settings["tokenizer__ggml__pre"] = pre
    return metadata_of(architecture, **settings | values)


def sentencepiece(architecture: str = "llama", **values: MetadataValue) -> GgufMetadata:
    pieces = {
        "<unk>": (0.0, UNKNOWN),
        "<s>": (0.0, CONTROL),
        "</s>": (0.0, CONTROL),
        **{f"<0x{byte:02X}>": (0.0, BYTE) for byte in range(256)},
        "  ": (-1000.0, USER_DEFINED),
        "   ": (-1000.0, USER_DEFINED),
        "<tool>": (-1000.0, USER_DEFINED),
        "▁h": (-1.0, NORMAL),
        "el": (-2.0, NORMAL),
        "▁hel": (-3.0, NORMAL),
        "lo": (-4.0, NORMAL),
        "▁hello": (-5.0, NORMAL),
        "unused": (-6.0, UNUSED),
        **{character: (-10.0 - number, NORMAL) for number, character in enumerate("▁helounsd")},
    }
    named: dict[str, MetadataValue] = {
        "tokenizer__ggml__model": "llama",
        "tokenizer__ggml__tokens": list(pieces),
        "tokenizer__ggml__token_type": np.array([kind for _, kind in pieces.values()]),
        "tokenizer__ggml__scores": np.array([score for score, _ in pieces.values()], np.float32),
        "tokenizer__ggml__bos_token_id": 1,
        "tokenizer__ggml__eos_token_id": 2,
    }
    return metadata_of(architecture, **named | values)


def tokens_of(tokenizer: Tokenizer, text: str, special: bool = False) -> list[str]:
    return tokenizer.encode(text, add_special_tokens=special).tokens


def split_of(pre: str | None, text: str, architecture: str = "llama") -> list[str]:
    tokenizer = build_tokenizer(byte_level(pre, architecture))
    return [text[start:end] for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "qwen2", "tekken", "default"])
@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_decodes_to_what_was_encoded(pre: str, text: str) -> None:
    tokenizer = build_tokenizer(byte_level(pre))
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=True) == text


@given(st.text(max_size=40))
@settings(max_examples=50)
def test_byte_level_loses_no_text(text: str) -> None:
    tokenizer = build_tokenizer(byte_level("llama-bpe"))
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_byte_level_merges() -> None:
    assert tokens_of(build_tokenizer(byte_level()), "hello he") == ["hello", "Ġ", "he"]


def test_splitting_rules() -> None:
    text = "we'll pay 12345  now"
    assert split_of("smollm", text) == ["we", "'ll", " pay", " ", "1", "2", "3", "4", "5", " ", " now"]
    assert split_of("gpt-2", text) == ["we", "'ll", " pay", " 12345", " ", " now"]
    assert split_of("llama-bpe", text) == ["we", "'ll", " pay", " ", "123", "45", " ", " now"]
    assert split_of("qwen2", text) == ["we", "'ll", " pay", " ", "1", "2", "3", "4", "5", " ", " now"]
    assert split_of("default", text) == ["we", "'", "ll", " pay", " ", "123", "45", " ", " now"]
    assert split_of("tekken", "aBc12") == ["a", "Bc", "1", "2"]
    assert split_of("llama-bpe", "I'LL") == ["I", "'LL"]


def test_qwen_normalizes_and_is_assumed_for_its_older_files() -> None:
    tokenizer = build_tokenizer(byte_level(None, "qwen2"))
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("é").ids
    assert split_of(None, "12", "qwen3") == ["1", "2"]


def test_unknown_splitting_rule() -> None:
    with pytest.raises(StartupError, match=r"splits text by `martian`.*known are .*smollm"):
        build_tokenizer(byte_level("martian"))
    with pytest.raises(StartupError, match="does not say how its tokenizer splits text"):
        build_tokenizer(byte_level(None))


@pytest.mark.parametrize("merges", [["h zz"], ["he"]])
def test_merges_that_do_not_fit(merges: list[str]) -> None:
    with pytest.raises(StartupError, match="merges that do not fit its vocabulary"):
        build_tokenizer(byte_level(tokenizer__ggml__merges=merges))


def test_special_and_user_defined_tokens() -> None:
    tokenizer = build_tokenizer(byte_level())
    ids = tokenizer.encode("he</s><tool>he").ids
    assert tokens_of(tokenizer, "he</s><tool>he") == ["he", "</s>", "<tool>", "he"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "he<tool>he"


def test_bos_and_eos_around_a_prompt() -> None:
    assert tokens_of(build_tokenizer(byte_level("smollm")), "he", special=True) == ["he"]
    assert tokens_of(build_tokenizer(byte_level("llama-bpe")), "he", special=True) == ["<s>", "he"]
    both = byte_level(tokenizer__ggml__add_bos_token=True, tokenizer__ggml__add_eos_token=True)
    assert tokens_of(build_tokenizer(both), "he", special=True) == ["<s>", "he", "</s>"]
    assert build_tokenizer(both).encode("he", "ll").tokens == ["<s>", "he", "</s>", "<s>", "ll", "</s>"]
    off = byte_level("llama-bpe", tokenizer__ggml__add_bos_token=False)
    assert tokens_of(build_tokenizer(off), "he", special=True) == ["he"]
    assert tokens_of(build_tokenizer(sentencepiece()), "hello", special=True) == ["<s>", "▁hello"]


def test_whole_words_are_taken_without_merging() -> None:
    values: dict[str, MetadataValue] = {"tokenizer__ggml__merges": ["h e"]}
    assert tokens_of(build_tokenizer(byte_level("llama-bpe", **values)), "hello") == ["hello"]
    assert tokens_of(build_tokenizer(byte_level("gpt-2", **values)), "hello") == ["he", "l", "l", "o"]


def test_fillers_are_no_tokens() -> None:
    tokens = [*byte_alphabet(), "[PAD256]", "[PAD1]"]
    types = np.array([NORMAL] * 256 + [UNUSED, NORMAL])
    settings: dict[str, MetadataValue] = {"tokenizer__ggml__tokens": tokens, "tokenizer__ggml__token_type": types}
    tokenizer = build_tokenizer(byte_level(tokenizer__ggml__merges=[], **settings))
    assert tokenizer.token_to_id("[PAD256]") is None
    assert tokenizer.token_to_id("[PAD1]") == 257


def test_sentencepiece_merges_by_score() -> None:
    tokenizer = build_tokenizer(sentencepiece())
    # "el" has a better score than "lo", so "elo" is el + o.
    assert tokens_of(tokenizer, "hello") == ["▁hello"]
    assert tokens_of(tokenizer, "h elo") == ["▁h", "▁", "el", "o"]


def test_sentencepiece_falls_back_to_bytes() -> None:
    tokenizer = build_tokenizer(sentencepiece())
    assert tokens_of(tokenizer, "hé") == ["▁h", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("hé 😀\n").ids) == "hé 😀\n"


def test_sentencepiece_does_not_make_unused_pieces() -> None:
    assert "unused" not in tokens_of(build_tokenizer(sentencepiece()), "unused")


def test_sentencepiece_takes_user_defined_runs_of_spaces_whole() -> None:
    tokenizer = build_tokenizer(sentencepiece("gemma3"))
    assert tokens_of(tokenizer, "o   h") == ["o", "▁▁▁", "h"]
    assert tokens_of(tokenizer, "o     h") == ["o", "▁▁▁", "▁▁", "h"]
    assert tokenizer.decode(tokenizer.encode("o     h  ").ids) == "o     h  "


def test_sentencepiece_space_prefix() -> None:
    assert tokens_of(build_tokenizer(sentencepiece("gemma")), "hello") == ["h", "el", "lo"]
    without = sentencepiece(tokenizer__ggml__add_space_prefix=False)
    assert tokens_of(build_tokenizer(without), "hello") == ["h", "el", "lo"]
    prefixed = build_tokenizer(sentencepiece())
    assert prefixed.decode(prefixed.encode("hello  h").ids) == "hello  h"


def test_sentencepiece_without_scores() -> None:
    with pytest.raises(StartupError, match="no score for each token"):
        build_tokenizer(sentencepiece(tokenizer__ggml__scores=np.zeros(3, np.float32)))


def test_tokenizers_that_are_not_there_or_not_known() -> None:
    with pytest.raises(StartupError, match="has no tokenizer"):
        build_tokenizer(metadata_of())
    with pytest.raises(StartupError, match="kind `bert`; known are gpt2"):
        build_tokenizer(byte_level(tokenizer__ggml__model="bert"))
    with pytest.raises(StartupError, match="but types for 1"):
        build_tokenizer(byte_level(tokenizer__ggml__token_type=np.array([1])))
    with pytest.raises(StartupError, match="token of unknown type"):
        build_tokenizer(byte_level(tokenizer__ggml__token_type=np.full(265, 99)))
    with pytest.raises(StartupError, match="no merges"):
        build_tokenizer(
            metadata_of(
                tokenizer__ggml__model="gpt2",
                tokenizer__ggml__pre="gpt-2",
                **{
                    "tokenizer__ggml__tokens": ["a"],
                },
            )
        )


def test_tokenizer_config() -> None:
    config = tokenizer_config(byte_level(tokenizer__chat_template="{{ messages }}"))
    assert (config["bos_token"], config["eos_token"]) == ("<s>", "</s>")
    assert config["chat_template"] == "{{ messages }}"
    assert config["model_max_length"] == 64
    assert "chat_template" not in tokenizer_config(byte_level())


def test_several_chat_templates() -> None:
    named = byte_level(
        tokenizer__chat_template="a", tokenizer__chat_templates=["rag"], tokenizer__chat_template__rag="b"
    )
    assert tokenizer_config(named)["chat_template"] == [
        {"name": "default", "template": "a"},
        {"name": "rag", "template": "b"},
    ]


def test_transformers_reads_the_same_tokenizer(tmp_path: Path) -> None:
    folder = convert_gguf(write_llama(tmp_path / "m.gguf"), tmp_path / "cache")
    own, theirs = Tokenizer.from_file(str(folder / "tokenizer.json")), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert theirs(text)["input_ids"] == own.encode(text).ids
    assert (theirs.bos_token, theirs.eos_token) == ("<s>", "</s>")
    assert theirs.chat_template == "{{ messages }}<|im_end|>"
