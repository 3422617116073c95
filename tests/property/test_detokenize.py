"""Pieces joined are the decoding of the whole, wherever tokens cut characters."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.real_tokenizers import REAL_TOKENIZERS
from tests.support.text_tokenizers import (
    byte_level_json,
    encode,
    load,
    metaspace_json,
    spaces_json,
    unigram_json,
)
from tgi_core.requests import IncrementalDetokenizer, TextTokenizer
from tgi_core.requests.tokenizer import REPLACEMENT


def _load(source: str) -> TextTokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return load(Path(folder), source)


def _load_real(name: str) -> TextTokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return TextTokenizer(REAL_TOKENIZERS[name](Path(folder)).tokenizer_file, workers=1)


BYTE_LEVEL = _load(byte_level_json())
METASPACE = _load(metaspace_json())
SPACES = _load(spaces_json())
UNIGRAM = _load(unigram_json())
SMALL = {"byte-level": BYTE_LEVEL, "metaspace": METASPACE, "spaces": SPACES, "unigram": UNIGRAM}
REAL = {name: _load_real(name) for name in REAL_TOKENIZERS}
FAMILIES = pytest.mark.parametrize("tokenizer", [*SMALL.values(), *REAL.values()], ids=[*SMALL, *REAL])
LOSSLESS = pytest.mark.parametrize(
    "tokenizer",
    [BYTE_LEVEL, SPACES, REAL["smollm2"], REAL["deepseek"]],
    ids=["byte-level", "spaces", "smollm2", "deepseek"],
)
BYTE_LEVEL_FOX = encode(BYTE_LEVEL, "fox")
METASPACE_FOX = encode(METASPACE, "fox")

# U+FFFD itself cannot be told from bytes that are no text, and SmolLM2's tokenizer lacks the highest planes' bytes.
characters = st.one_of(
    st.characters(exclude_categories=["Cs"], exclude_characters=REPLACEMENT, max_codepoint=0x3FFFF),
    st.sampled_from("the fox “ 語"),
    st.sampled_from(["😀", "👨\u200d👩\u200d👧", "🇩🇪", "👍🏽", "e\u0301\u0327", "นี่", "กำ", "\u1112\u1161\u11ab"]),
)
texts = st.lists(characters, max_size=20).map("".join)
byte_level_ids = st.lists(st.one_of(st.integers(2, 499), st.integers(160, 257)), max_size=40)
metaspace_ids = st.lists(st.one_of(st.integers(3, 400), st.integers(130, 258)), max_size=40)


def pieces(tokenizer: TextTokenizer, ids: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer)
    return [detokenizer.push(token_id) for token_id in ids]


def joined(tokenizer: TextTokenizer, ids: list[int]) -> str:
    return "".join(pieces(tokenizer, ids))


def assume_known(tokenizer: TextTokenizer, ids: list[int], text: str) -> None:
    """Leave out what a tokenizer cannot say: SmolLM2's lacks some control characters."""
    assume(tokenizer.decode(ids, skip_special_tokens=False) == text)


@FAMILIES
@given(texts)
def test_pieces_joined_are_the_plain_decoding(tokenizer: TextTokenizer, text: str) -> None:
    ids = encode(tokenizer, text)
    assume(not tokenizer.decode_continuation(ids).endswith(REPLACEMENT))
    whole = joined(tokenizer, ids)
    assert whole == tokenizer.decode_continuation(ids)
    # A plain decoding drops the space that some tokenizers put in front of a text.
    plain = tokenizer.decode(ids, skip_special_tokens=False)
    assert whole in (plain, " " + plain)


@LOSSLESS
@given(texts)
def test_a_text_comes_back(tokenizer: TextTokenizer, text: str) -> None:
    ids = encode(tokenizer, text)
    assume_known(tokenizer, ids, text)
    assert joined(tokenizer, ids) == text


@LOSSLESS
@given(texts)
def test_a_character_comes_with_the_token_that_completes_it(tokenizer: TextTokenizer, text: str) -> None:
    spans = asyncio.run(tokenizer.encode_with_offsets(text, False))
    ids = [span.id for span in spans]
    assume_known(tokenizer, ids, text)
    seen = 0
    for count, piece in enumerate(pieces(tokenizer, ids), start=1):
        seen += len(piece)
        # What later tokens have a part in is not complete; what has come before is, to the byte.
        later = min((span.start for span in spans[count:]), default=len(text.encode()))
        assert text[:seen].encode() == text.encode()[:later]


@given(byte_level_ids)
def test_any_byte_level_tokens_give_the_decoding_of_the_whole(ids: list[int]) -> None:
    ids = [*ids, *BYTE_LEVEL_FOX]
    assert joined(BYTE_LEVEL, ids) == BYTE_LEVEL.decode(ids, skip_special_tokens=False)


@given(byte_level_ids)
def test_only_an_unreadable_end_is_left_out(ids: list[int]) -> None:
    whole, text = BYTE_LEVEL.decode(ids, skip_special_tokens=False), joined(BYTE_LEVEL, ids)
    assert whole.startswith(text)
    assert set(whole[len(text) :]) <= {REPLACEMENT}
    # No more than three tokens wait to be completed.
    assert text.startswith(BYTE_LEVEL.decode(ids[:-3], skip_special_tokens=False).rstrip(REPLACEMENT))


@given(metaspace_ids)
def test_any_byte_fallback_tokens_are_survived(ids: list[int]) -> None:
    text = joined(METASPACE, [*ids, *METASPACE_FOX])
    assert text.endswith(" fox")
    assert len(text) >= len(METASPACE_FOX)
