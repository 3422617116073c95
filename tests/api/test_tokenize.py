"""``/tokenize``."""

from __future__ import annotations

from tests.support.api import BOS_ID, Api


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
