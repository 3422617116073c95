"""Pieces joined are the decoding of the whole, wherever tokens cut characters."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.support.text_tokenizers import byte_level_json, encode, load, metaspace_json
from tgi_core.requests import IncrementalDetokenizer, TextTokenizer
from tgi_core.requests.tokenizer import REPLACEMENT


def _load(source: str) -> TextTokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return load(Path(folder), source)


BYTE_LEVEL = _load(byte_level_json())
METASPACE = _load(metaspace_json())
BYTE_LEVEL_FOX = encode(BYTE_LEVEL, "fox")
METASPACE_FOX = encode(METASPACE, "fox")

texts = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("the fox “😀👨\u200d👩\u0301語")))
byte_level_ids = st.lists(st.one_of(st.integers(2, 499), st.integers(160, 257)), max_size=40)
metaspace_ids = st.lists(st.one_of(st.integers(3, 400), st.integers(130, 258)), max_size=40)


def joined(tokenizer: TextTokenizer, ids: list[int]) -> str:
    detokenizer = IncrementalDetokenizer(tokenizer)
    return "".join(detokenizer.push(token_id) for token_id in ids)


@given(texts)
def test_a_text_comes_back(text: str) -> None:
    assert joined(BYTE_LEVEL, encode(BYTE_LEVEL, text)) == text
    ids = encode(METASPACE, text)
    assert joined(METASPACE, ids) == METASPACE.decode_continuation(ids)


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
