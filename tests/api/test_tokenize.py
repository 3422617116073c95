"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

import pytest

from tests.support.api import BOS_ID, Api, error_message, make_state, open_api
from tests.support.text_tokenizers import BOS
from tgi_api.state import MAX_TOKENIZATIONS
from tgi_core.requests import TextTokenizer


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


TOKENIZING = {
    "/tokenize": {"inputs": "fox"},
    "/detokenize": {"tokens": [5]},
    "/chat_tokenize": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
}


@pytest.mark.parametrize("path", TOKENIZING)
def test_a_server_full_of_generations_still_tokenizes(tokenizer: TextTokenizer, path: str) -> None:
    with open_api(make_state(tokenizer, max_concurrent_requests=1)) as api:
        with api.state.permits.hold():
            assert api.post(path, TOKENIZING[path]).status_code == 200
        api.state.tokenizations.take(MAX_TOKENIZATIONS)
        reply = api.post(path, TOKENIZING[path])
        assert (reply.status_code, reply.json()["error_type"]) == (429, "overloaded")
        assert "32 of at most 32 tokenizations" in error_message(reply)


def test_chat_tokenize_counts_as_a_request(api: Api) -> None:
    api.post("/chat_tokenize", TOKENIZING["/chat_tokenize"])
    assert api.metric("tgi_request_count") == 1
