from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.text_tokenizers import encode, load, unigram_json
from tgi_core.requests import IncrementalDetokenizer, TextTokenizer
from tgi_core.requests.tokenizer import REPLACEMENT, FastCodec


def pieces_of(tokenizer: TextTokenizer, ids: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer)
    return [detokenizer.push(token_id) for token_id in ids]


def byte_ids(tokenizer: TextTokenizer, data: bytes) -> list[int]:
    """One token for each byte, in a byte-level vocabulary."""
    # Such a vocabulary names bytes by printable characters: themselves, or from U+0100 on in order.
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    names = [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in data]
    assert isinstance(tokenizer.codec, FastCodec)
    vocabulary = tokenizer.codec.tokenizer.get_vocab()
    return [vocabulary[name] for name in names]


def test_a_character_appears_with_the_token_that_completes_it(byte_level: TextTokenizer) -> None:
    assert pieces_of(byte_level, byte_ids(byte_level, "a😀b".encode())) == ["a", "", "", "", "😀", "b"]


def test_an_unfinished_character_at_the_end_is_left_out(byte_level: TextTokenizer) -> None:
    assert pieces_of(byte_level, byte_ids(byte_level, b"a\xf0\x9f")) == ["a", "", ""]


def test_whole_characters_in_front_of_an_unfinished_one_do_not_wait(byte_level: TextTokenizer) -> None:
    quotes = encode(byte_level, " “")
    detokenizer = IncrementalDetokenizer(byte_level)
    joined = ""
    for token_id in [*encode(byte_level, "fox"), *quotes]:
        joined += detokenizer.push(token_id)
    assert joined == "fox “"


def test_bytes_that_are_no_text_do_not_block_what_follows(byte_level: TextTokenizer) -> None:
    assert pieces_of(byte_level, byte_ids(byte_level, b"\xffa")) == ["", REPLACEMENT + "a"]


def test_an_endless_run_of_wrong_bytes_is_released_in_time(byte_level: TextTokenizer) -> None:
    pieces = pieces_of(byte_level, byte_ids(byte_level, b"\xff" * 1000))
    assert "".join(pieces) == REPLACEMENT * 997


def test_a_good_character_after_wrong_bytes_survives(byte_level: TextTokenizer) -> None:
    data = b"\xff\xf0\x9f\x98\xf0\x9f\x98\x80"
    assert "".join(pieces_of(byte_level, byte_ids(byte_level, data))) == data.decode(errors="replace")


def test_spaces_in_front_of_words_come_out(metaspace: TextTokenizer) -> None:
    assert "".join(pieces_of(metaspace, encode(metaspace, "the fox"))) == " the fox"


def test_byte_fallback_after_a_finished_character(metaspace: TextTokenizer) -> None:
    byte = {value: value + 3 for value in range(256)}
    good, start = [byte[value] for value in "語".encode()], byte[0xE8]
    assert pieces_of(metaspace, [*good, start, *encode(metaspace, "the")]) == ["", "", "語", "", REPLACEMENT + " the"]


def test_an_id_without_a_token_adds_nothing(byte_level: TextTokenizer) -> None:
    fox = encode(byte_level, "fox")
    assert "".join(pieces_of(byte_level, [1_000_000, *fox, 1_000_000, *fox])) == "foxfox"


@pytest.mark.parametrize("text", ["👨‍👩‍👧🇩🇪👍🏽", "e\u0301\u0327o\u0308", "นี่คือ", "\u0000\t\r\n"])
def test_marks_and_sequences(byte_level: TextTokenizer, metaspace: TextTokenizer, text: str) -> None:
    assert "".join(pieces_of(byte_level, encode(byte_level, text))) == text
    # A Metaspace tokenizer puts a space in front of a text.
    assert "".join(pieces_of(metaspace, encode(metaspace, text))) == " " + text


def test_a_text_that_begins_has_no_space_in_front(tmp_path: Path) -> None:
    unigram = load(tmp_path, unigram_json())
    ids = encode(unigram, "The quick fox")
    beginning = IncrementalDetokenizer(unigram, begins_text=True)
    assert "".join(map(beginning.push, ids)) == "The quick fox"
    assert "".join(map(IncrementalDetokenizer(unigram).push, ids)) == " The quick fox"
