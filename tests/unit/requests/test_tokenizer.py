from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.text_tokenizers import BOS, EOS, byte_level_json, encode, load
from tgi_core.errors import ExitCode, StartupError, ValidationError
from tgi_core.requests import TextTokenizer, TokenSpan

TEXT = "Grüße 😀 the fox"


def test_encode_adds_special_tokens_only_when_asked(metaspace: TextTokenizer) -> None:
    plain = encode(metaspace, TEXT)
    full = encode(metaspace, TEXT, add_special_tokens=True)
    assert full == [1, *plain]
    assert metaspace.prefix_ids == (1,)
    assert metaspace.decode(full, skip_special_tokens=True) == TEXT


def test_a_tokenizer_without_bos_has_no_prefix(byte_level: TextTokenizer) -> None:
    assert byte_level.prefix_ids == ()


def test_special_ids_and_literal_texts(metaspace: TextTokenizer) -> None:
    assert metaspace.special_ids == {0, 1, 2}
    assert metaspace.token_text(1) == BOS
    assert metaspace.token_text(2) == EOS


def test_token_text_keeps_a_leading_space(metaspace: TextTokenizer) -> None:
    assert metaspace.token_text(encode(metaspace, "the")[0]) == " the"


def test_token_text_of_an_unknown_id_is_empty(byte_level: TextTokenizer) -> None:
    assert byte_level.token_text(1_000_000) == ""


@pytest.mark.parametrize("text", ["the fox", "Grüße 😀 the fox", "日本"])
def test_offsets_are_bytes_that_cut_the_input(byte_level: TextTokenizer, text: str) -> None:
    spans = asyncio.run(byte_level.encode_with_offsets(text, True))
    assert [span.id for span in spans] == encode(byte_level, text)
    data = text.encode()
    assert all(data[span.start : span.stop].decode() == span.text for span in spans)
    assert spans[0].start == 0
    assert spans[-1].stop == len(data)


def test_an_added_bos_has_no_text(metaspace: TextTokenizer) -> None:
    assert asyncio.run(metaspace.encode_with_offsets("the", True))[0] == TokenSpan(1, "", 0, 0)


def test_lone_surrogates_are_refused(byte_level: TextTokenizer) -> None:
    with pytest.raises(ValidationError, match="surrogate pair at character 2"):
        encode(byte_level, "a \ud800 b")
    with pytest.raises(ValidationError):
        asyncio.run(byte_level.encode_with_offsets("\udfff", True))


def test_settings_of_the_training_do_not_cut_prompts(tmp_path: Path) -> None:
    source = json.loads(byte_level_json())
    source["truncation"] = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    source["padding"] = {
        "strategy": {"Fixed": 50},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": BOS,
    }
    tokenizer = load(tmp_path, json.dumps(source))
    ids = encode(tokenizer, TEXT)
    tokenizer.close()
    assert 0 not in ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == TEXT


def test_a_file_that_is_no_tokenizer_is_a_startup_error(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"tokenizer\.json") as caught:
        load(tmp_path, "{}")
    assert caught.value.exit_code is ExitCode.MODEL
    assert caught.value.fix


def test_the_event_loop_runs_on_while_a_long_text_is_encoded(byte_level: TextTokenizer) -> None:
    async def longest_pause_s() -> float:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(byte_level.encode("the quick brown fox " * 20_000, False))
        longest = 0.0
        while not task.done():
            before = loop.time()
            await asyncio.sleep(0)
            longest = max(longest, loop.time() - before)
        assert await task
        return longest

    assert asyncio.run(longest_pause_s()) < 0.1
