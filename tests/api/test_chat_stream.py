"""``/v1/chat/completions``, streamed."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tests.support.api import Api, events
from tgi_api.schemas.chat import ChatCompletionChunk

HELLO = [{"role": "user", "content": "hello"}]


def stream(api: Api, **body: Any) -> Any:
    """POST a streamed chat that says hello."""
    return api.post("/v1/chat/completions", {"messages": HELLO, "stream": True, **body})


def contents(chunks: list[Any]) -> list[str]:
    """The content of every delta."""
    return [choice["delta"]["content"] for chunk in chunks for choice in chunk["choices"]]


def test_golden_stream(api: Api) -> None:
    reply = stream(api, model="dummy", stream_options={"include_usage": True})
    text = re.sub(r'"chatcmpl-[0-9a-f]{32}"', '"ID"', reply.text)
    text = re.sub(r'"created":1\d{9}', '"created":0', text)
    start = (
        'data: {"object":"chat.completion.chunk","id":"ID","created":0,"model":"dummy",'
        '"system_fingerprint":"0.1.0-native","choices":['
    )
    prompt_tokens = len(api.engine.submitted[0].prompt)
    assert text.split("\n\n") == [
        start + '{"index":0,"delta":{"role":"assistant","content":" fox"},"logprobs":null,"finish_reason":null}],'
        '"usage":null}',
        start + '{"index":0,"delta":{"content":" jumps"},"logprobs":null,"finish_reason":null}],"usage":null}',
        start + '{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop"}],"usage":null}',
        start + f'],"usage":{{"prompt_tokens":{prompt_tokens},"completion_tokens":3,'
        f'"total_tokens":{prompt_tokens + 3},"prompt_tokens_details":{{"cached_tokens":7}}}}}}',
        "data: [DONE]",
        "",
    ]


def test_every_chunk_fits_its_schema_and_has_the_same_head(api: Api) -> None:
    chunks = events(stream(api, logprobs=True, stream_options={"include_usage": True}).text)
    assert chunks.pop() == "[DONE]"
    heads = {tuple(str(chunk[key]) for key in ("id", "created", "model", "object")) for chunk in chunks}
    assert len(heads) == 1
    for chunk in chunks:
        msgspec.convert(chunk, ChatCompletionChunk)


def test_no_usage_unless_asked_for(api: Api) -> None:
    for options in (None, {"include_usage": False}, {}):
        *chunks, done = events(stream(api, stream_options=options).text)
        assert done == "[DONE]"
        assert {chunk["usage"] for chunk in chunks} == {None}
        assert all(chunk["choices"] for chunk in chunks)


def test_stream_and_plain_agree(api: Api) -> None:
    api.engine.say("Grüße 日本 \n\n👍🏽 ok")
    plain = api.post("/v1/chat/completions", {"messages": HELLO}).json()
    *chunks, _ = events(stream(api).text)
    assert "".join(contents(chunks)) == plain["choices"][0]["message"]["content"] == "Grüße 日本 \n\n👍🏽 ok"


def test_only_the_last_delta_is_empty(api: Api) -> None:
    api.engine.say("日本語")
    *chunks, _ = events(stream(api, stop=["@@never@@"]).text)
    assert all(contents(chunks)[:-1])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "stop"


def test_no_part_of_a_stop_is_sent(api: Api) -> None:
    *chunks, _ = events(stream(api, stop=["fox jum"]).text)
    assert "".join(contents(chunks)) == " "
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_an_answer_without_text_has_a_role_and_a_finish_reason(api: Api) -> None:
    api.engine.reply = ()
    (chunk, done) = events(stream(api).text)
    assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunk["choices"][0]["finish_reason"] == "stop"
    assert done == "[DONE]"


def test_logprobs_one_entry_a_chunk(api: Api) -> None:
    *chunks, _ = events(stream(api, logprobs=True).text)
    entries = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry["content"][0]["token"] for entry in entries[:-1]] == [" fox", " jumps", "</s>"]
    assert entries[0]["content"] == [{"token": " fox", "logprob": -0.1, "bytes": list(b" fox"), "top_logprobs": []}]
    assert contents(chunks) == [" fox", " jumps", "", ""]
    assert entries[-1] is None


def test_streamed_alternatives_are_the_plain_ones(api: Api) -> None:
    api.engine.tops = ([*api.engine.reply, 5], [-0.1, -2.0, -3.0])
    plain = api.post("/v1/chat/completions", {"messages": HELLO, "logprobs": True, "top_logprobs": 3}).json()
    *chunks, _ = events(stream(api, logprobs=True, top_logprobs=3).text)
    found = [entry for chunk in chunks[:-1] for entry in chunk["choices"][0]["logprobs"]["content"]]
    assert found == plain["choices"][0]["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in found] == [3, 3, 3]
    for chunk in chunks:
        msgspec.convert(chunk, ChatCompletionChunk)


def test_choices_are_told_apart(api: Api) -> None:
    api.engine.replies = [api.engine.reply, api.engine.reply[1:]]
    *chunks, done = events(stream(api, n=2, stream_options={"include_usage": True}).text)
    assert done == "[DONE]"
    usage = chunks.pop()["usage"]
    assert usage["prompt_tokens"] == len(api.engine.submitted[0].prompt)
    assert usage["completion_tokens"] == 5
    choices = [chunk["choices"][0] for chunk in chunks]
    for index, text in ((0, " fox jumps"), (1, " jumps")):
        own = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["delta"]["content"] for choice in own) == text
        assert own[0]["delta"]["role"] == "assistant"
        assert [choice["finish_reason"] for choice in own][-1] == "stop"
        assert all("role" not in choice["delta"] for choice in own[1:])


def test_an_error_of_one_choice_ends_all(api: Api) -> None:
    api.engine.fail_after = 1
    chunks = events(stream(api, n=2).text)
    assert chunks[-1] == "[DONE]"
    assert sum("error" in chunk for chunk in chunks) == 1
    assert api.engine.in_flight == 0
    assert api.state.permits.taken == 0


def test_an_error_is_an_event_and_then_done(api: Api) -> None:
    api.engine.fail_after = 1
    chunks = events(stream(api, stream_options={"include_usage": True}).text)
    assert chunks[1:] == [
        {
            "error": {
                "message": "Request failed during generation: the device is on fire",
                "type": "server_error",
                "param": None,
                "code": None,
                "http_status_code": 424,
            },
            "error_type": "generation",
        },
        "[DONE]",
    ]
    assert api.metric('tgi_request_failure{err="generation"}') == 1


def test_what_is_wrong_is_told_before_the_stream(api: Api) -> None:
    reply = stream(api, temperature=-1.0)
    assert reply.status_code == 422
    assert reply.json()["error_type"] == "validation"
