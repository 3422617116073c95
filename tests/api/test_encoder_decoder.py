"""A model whose encoder reads the prompt, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.api import EOS_ID, INFO, Api, error_message, events, make_state, open_api
from tests.support.text_tokenizers import encode, load, unigram_json

START = 2


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """A server that answers everything with "The brown fox"."""
    tokenizer = load(tmp_path, unigram_json())
    info = replace(INFO, max_input_tokens=30, max_step_tokens=30, decoder_prompt=[START])
    with open_api(make_state(tokenizer, info=info)) as api:
        api.engine.reply = [token_id for token_id in encode(tokenizer, "The brown fox") if token_id != EOS_ID]
        yield api
    tokenizer.close()


def test_the_prompt_goes_to_the_engine_and_the_text_begins_by_itself(api: Api) -> None:
    reply = api.post("/generate", {"inputs": "the lazy dog", "parameters": {"details": True, "max_new_tokens": 127}})
    assert reply.json()["generated_text"].startswith("The brown fox")
    assert reply.headers["x-prompt-tokens"] == str(len(encode(api.state.tokenizer, "the lazy dog")))
    assert api.engine.submitted[0].prompt == encode(api.state.tokenizer, "the lazy dog")
    assert api.engine.submitted[0].max_new_tokens == 127, "all of the decoder's context but its first token"


def test_streamed_texts_join_to_the_plain_one(api: Api) -> None:
    body = {"inputs": "the lazy dog", "parameters": {"max_new_tokens": 3}}
    streamed = events(api.post("/generate_stream", body).text)
    joined = "".join(event["token"]["text"] for event in streamed)
    assert joined == streamed[-1]["generated_text"] == api.post("/generate", body).json()["generated_text"]
    assert joined.startswith("The")


def test_prefill_is_what_the_decoder_starts_with(api: Api) -> None:
    body = {"inputs": "the dog", "parameters": {"decoder_input_details": True}}
    prefill = api.post("/generate", body).json()["details"]["prefill"]
    assert prefill == [{"id": START, "text": "</s>", "logprob": None}]


def test_the_full_text_only_when_asked_for(api: Api) -> None:
    body = {"inputs": "the dog: ", "parameters": {"max_new_tokens": 3}}
    (plain,) = api.post("/", body).json()
    assert plain["generated_text"].startswith("The")
    body["parameters"]["return_full_text"] = True
    (full,) = api.post("/", body).json()
    assert full["generated_text"] == "the dog: " + plain["generated_text"]


def test_a_prompt_too_long_for_the_encoder(api: Api) -> None:
    reply = api.post("/generate", {"inputs": "dog " * 100})
    assert reply.status_code == 422
    assert "--max-batch-prefill-tokens" in error_message(reply)
    assert api.post("/generate", {"inputs": "dog " * 100, "parameters": {"truncate": 30}}).status_code == 200
    assert len(api.engine.submitted[0].prompt) == 30


def test_completions(api: Api) -> None:
    body = {"prompt": "the dog", "max_tokens": 3, "echo": True}
    reply = api.post("/v1/completions", body).json()
    assert reply["choices"][0]["text"].startswith("the dogThe")
    assert reply["usage"]["prompt_tokens"] == len(encode(api.state.tokenizer, "the dog"))
    refused = api.post("/v1/completions", body | {"logprobs": 1})
    assert refused.status_code == 422
    assert "encoder" in error_message(refused)
