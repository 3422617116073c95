"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

import pytest

from tests.support.api import BOS_ID, Api, error_message
from tests.support.text_tokenizers import BOS


def test_tokens_with_byte_offsets_and_special_tokens(api: Api) -> None:
    text = "grüße fox"
    tokens = api.post("/tokenize", {"inputs": text}).json()
    assert tokens[0] == {"id": BOS_ID, "text": "", "start": 0, "stop": 0}
    assert "".join(token["text"] for token in tokens) == text
    content = text.encode()
    for token in tokens:
        assert content[token["start"] : token["stop"]].decode() == token["text"]


def test_only_inputs_count(api: Api) -> None:
    body = {"inputs": "fox", "parameters": {"temperature": -1}}
    assert "".join(token["text"] for token in api.post("/tokenize", body).json()) == "fox"


def test_the_counters_of_requests_stay(api: Api) -> None:
    api.post("/tokenize", {"inputs": "fox"})
    assert api.metric("tgi_request_count") == 0


def test_detokenize(api: Api) -> None:
    ids = [token["id"] for token in api.post("/tokenize", {"inputs": "The quick"}).json()]
    assert api.post("/detokenize", {"tokens": ids}).json() == {"prompt": f"{BOS}The quick"}
    body = {"tokens": [*ids, ids[-1]], "skip_special_tokens": True}
    assert api.post("/detokenize", body).json() == {"prompt": "The quick quick"}
    assert api.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("tokens", "part"),
    [
        ([500], "`tokens`"),
        ([-1], "`tokens`"),
        ([10**30], "`tokens`"),
        ([1] * 129, "at most 128"),
        ([1.5], "$.tokens[0]"),
    ],
)
def test_token_ids_that_are_none(shared_api: Api, tokens: list[float], part: str) -> None:
    reply = shared_api.post("/detokenize", {"tokens": tokens})
    assert reply.status_code == 422
    assert part in error_message(reply)
