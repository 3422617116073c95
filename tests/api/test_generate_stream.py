"""``/generate_stream``, and ``/`` with ``stream``."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.api import EOS_ID, Api, events
from tests.support.text_tokenizers import encode
from tgi_api.schemas.generate import StreamResponse


def test_golden_stream(api: Api) -> None:
    reply = api.post("/generate_stream", {"inputs": "The quick", "parameters": {"details": True}})
    fox, jumps = api.engine.reply
    prompt_tokens = len(api.engine.submitted[0].prompt)
    assert reply.status_code == 200
    assert reply.text == (
        f'data: {{"index":1,"token":{{"id":{fox},"text":" fox","logprob":-0.1,"special":false}},'
        '"generated_text":null,"details":null}\n\n'
        f'data: {{"index":2,"token":{{"id":{jumps},"text":" jumps","logprob":-0.1,"special":false}},'
        '"generated_text":null,"details":null}\n\n'
        f'data: {{"index":3,"token":{{"id":{EOS_ID},"text":"</s>","logprob":-0.1,"special":true}},'
        '"generated_text":" fox jumps","details":{"finish_reason":"eos_token","generated_tokens":3,"seed":null,'
        f'"input_length":{prompt_tokens}}}}}\n\n'
    )


def test_stream_headers(api: Api) -> None:
    headers = api.post("/generate_stream", {"inputs": "The quick"}).headers
    assert headers["content-type"] == "text/event-stream"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-compute-type"] == "1-test-device"
    assert headers["x-compute-characters"] == "9"
    assert "content-length" not in headers


def test_every_event_fits_its_schema(api: Api) -> None:
    for event in events(api.post("/generate_stream", {"inputs": "x", "parameters": {"details": True}}).text):
        msgspec.convert(event, StreamResponse)


def test_golden_top_tokens(api: Api) -> None:
    fox, jumps = api.engine.reply
    api.engine.tops = ([jumps], [-0.25])
    body = {"inputs": "x", "parameters": {"top_n_tokens": 1, "stop": ["jumps"]}}
    top = f'"top_tokens":[{{"id":{jumps},"text":" jumps","logprob":-0.25,"special":false}}]'
    reply = api.post("/generate_stream", body)
    assert reply.text == (
        f'data: {{"index":1,"token":{{"id":{fox},"text":" fox","logprob":-0.1,"special":false}},{top},'
        '"generated_text":null,"details":null}\n\n'
        f'data: {{"index":2,"token":{{"id":{jumps},"text":" jumps","logprob":-0.1,"special":false}},{top},'
        '"generated_text":" fox jumps","details":null}\n\n'
    )
    for event in events(reply.text):
        msgspec.convert(event, StreamResponse)


def test_details_only_when_asked_for(api: Api) -> None:
    last = events(api.post("/generate_stream", {"inputs": "x"}).text)[-1]
    assert last["generated_text"] == " fox jumps"
    assert last["details"] is None


def test_root_streams_the_full_text(api: Api) -> None:
    reply = api.post("/", {"inputs": "The quick", "stream": True})
    assert [event["index"] for event in events(reply.text)] == [1, 2, 3]
    assert events(reply.text)[-1]["generated_text"] == "The quick fox jumps"


def test_return_full_text(api: Api) -> None:
    body = {"inputs": "The quick", "stream": True, "parameters": {"return_full_text": False}}
    assert events(api.post("/", body).text)[-1]["generated_text"] == " fox jumps"
    body["parameters"] = {"return_full_text": True}
    assert events(api.post("/generate_stream", body).text)[-1]["generated_text"] == "The quick fox jumps"


def test_tokens_inside_a_character_have_no_text(api: Api) -> None:
    api.engine.say("字!")
    found = events(api.post("/generate_stream", {"inputs": "x"}).text)
    texts = [event["token"]["text"] for event in found[:-1]]
    assert "".join(texts) == "字!" == found[-1]["generated_text"]
    if len(encode(api.state.tokenizer, "字")) > 1:
        assert texts[0] == ""


def test_text_is_escaped(api: Api) -> None:
    api.engine.say('"a"\n\\ \t\x01')
    reply = api.post("/generate_stream", {"inputs": "x"})
    assert events(reply.text)[-1]["generated_text"] == '"a"\n\\ \t\x01'
    assert all(line.startswith("data: ") for line in reply.text.splitlines() if line)


def test_a_stop_in_the_last_event(api: Api) -> None:
    body = {"inputs": "x", "parameters": {"stop": [" fox ju"], "details": True}}
    found = events(api.post("/generate_stream", body).text)
    assert [event["token"]["text"] for event in found] == [" fox", " ju"]
    assert found[-1]["generated_text"] == " fox ju"
    assert found[-1]["details"]["finish_reason"] == "stop_sequence"


def test_not_finite_logprobs_are_null(api: Api) -> None:
    api.engine.logprob = float("-inf")
    found = events(api.post("/generate_stream", {"inputs": "x"}).text)
    assert {event["token"]["logprob"] for event in found} == {None}


def test_an_error_after_the_first_token_is_an_event(api: Api) -> None:
    api.engine.fail_after = 1
    reply = api.post("/generate_stream", {"inputs": "x"})
    assert reply.status_code == 200
    assert events(reply.text)[-1] == {
        "error": "Request failed during generation: the device is on fire",
        "error_type": "generation",
    }
    assert api.state.permits.taken == 0


@pytest.mark.parametrize(
    "parameters",
    [{"temperature": -1}, {"best_of": 2, "do_sample": True}, {"decoder_input_details": True}, {"max_new_tokens": 128}],
)
def test_what_is_wrong_is_told_before_the_stream(api: Api, parameters: dict[str, float]) -> None:
    reply = api.post("/generate_stream", {"inputs": "x", "parameters": parameters})
    assert reply.status_code == 422
    assert reply.json()["error_type"] == "validation"
    assert reply.json()["error"].startswith("Input validation error: ")
    assert api.engine.submitted == []
