"""``/v1/messages``: Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.api.test_responses import CALLING_TEMPLATE, ROOMY, THINKING_TEMPLATE, prompt_of
from tests.support.api import MODEL_ID, Api, error_message, make_state, named_events, open_api
from tgi_api.schemas.messages import MessageReply, MessagesRequest
from tgi_core.requests import TextTokenizer

HELLO = [{"role": "user", "content": "hi"}]
TOOLS = [{"name": "look", "description": "d", "input_schema": {"type": "object", "properties": {}}}]


@pytest.fixture
def calling(tokenizer: TextTokenizer) -> Iterator[Api]:
    """A server whose model thinks and calls."""
    with open_api(make_state(tokenizer, template=CALLING_TEMPLATE, info=ROOMY)) as api:
        yield api


def message(api: Api, messages: Any = HELLO, **body: Any) -> Any:
    """POST a conversation."""
    return api.post("/v1/messages", {"messages": messages, "max_tokens": 99, **body})


def test_golden_body(api: Api) -> None:
    reply = message(api)
    tokens = len(api.engine.submitted[0].prompt)
    assert reply.json() == {
        "id": f"msg_{reply.headers['x-request-id']}",
        "type": "message",
        "role": "assistant",
        "model": MODEL_ID,
        "content": [{"type": "text", "text": " fox jumps"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": tokens - 7,
            "output_tokens": 3,
            "cache_read_input_tokens": 7,
            "cache_creation_input_tokens": 0,
        },
    }
    msgspec.json.decode(reply.content, type=MessageReply)


def test_golden_stream(api: Api) -> None:
    reply = message(api, stream=True, model="other")
    assert reply.headers["content-type"] == "text/event-stream"
    tokens = len(api.engine.submitted[0].prompt) - 7
    usage = f'"usage":{{"input_tokens":{tokens},"output_tokens":%d,"cache_read_input_tokens":7,' + (
        '"cache_creation_input_tokens":0}'
    )
    start = (
        f'{{"type":"message_start","message":{{"id":"msg_{reply.headers["x-request-id"]}","type":"message",'
        '"role":"assistant","model":"other","content":[],"stop_reason":null,"stop_sequence":null,' + usage % 0 + "}}"
    )
    delta = '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%s"}}'
    expected = [
        ("message_start", start),
        ("content_block_start", '{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}'),
        ("content_block_delta", delta % " fox"),
        ("content_block_delta", delta % " jumps"),
        ("content_block_stop", '{"type":"content_block_stop","index":0}'),
        (
            "message_delta",
            '{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},' + usage % 3 + "}",
        ),
        ("message_stop", '{"type":"message_stop"}'),
    ]
    assert reply.text == "".join(f"event: {name}\ndata: {data}\n\n" for name, data in expected)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "reason", "stop"),
    [
        ({"max_tokens": 1}, "max_tokens", None),
        ({"stop_sequences": ["zz", " jum"]}, "stop_sequence", " jum"),
        ({}, "end_turn", None),
    ],
)
def test_stop_reasons(api: Api, body: dict[str, Any], reason: str, stop: str | None, stream: bool) -> None:
    reply = message(api, stream=stream, **body)
    end = named_events(reply.text)[-2]["delta"] if stream else reply.json()
    assert (end["stop_reason"], end["stop_sequence"]) == (reason, stop)


def test_the_conversation_is_rendered_as_a_chat(calling: Api) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "u", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "one"}]},
                {"type": "tool_result", "tool_use_id": "c2", "is_error": True},
                {"type": "text", "text": "v"},
            ],
        },
    ]
    system = [{"type": "text", "text": "S"}, {"type": "text", "text": "T"}]
    assert message(calling, messages, system=system, tools=TOOLS).status_code == 200
    assert prompt_of(calling) == (
        '<system>ST<user>u<assistant>ta<tool_call>{"name": "look", "arguments": {"x": 1}}</tool_call>'
        "<tool>one<tool><user>v1 tools <tool_call><think></think>"
    )


def test_a_prefilled_answer_is_continued(api: Api) -> None:
    message(api, [*HELLO, {"role": "assistant", "content": "The"}])
    assert prompt_of(api).endswith("<assistant>The")


def test_calls(calling: Api) -> None:
    calling.engine.say('Look: <tool_call>{"name": "look", "arguments": {"a": [1, 2]}}</tool_call>')
    plain = message(calling, tools=TOOLS).json()
    text, call = plain["content"]
    assert (text["type"], text["text"].strip()) == ("text", "Look:")
    assert call == {"type": "tool_use", "id": call["id"], "name": "look", "input": {"a": [1, 2]}}
    assert plain["stop_reason"] == "tool_use"
    found = named_events(message(calling, tools=TOOLS, stream=True).text)
    starts = [event["content_block"] for event in found if event["type"] == "content_block_start"]
    assert [start["type"] for start in starts] == ["text", "tool_use"]
    assert starts[1]["input"] == {}
    pieces = [
        event["delta"]["partial_json"]
        for event in found
        if event["type"] == "content_block_delta" and event["index"] == 1
    ]
    assert msgspec.json.decode("".join(pieces)) == {"a": [1, 2]}
    assert found[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_call_that_is_cut_off(calling: Api) -> None:
    calling.engine.say('<tool_call>{"name": "look", "arguments": {"a": [1,')
    reply = message(calling, tools=TOOLS, max_tokens=len(calling.engine.reply)).json()
    assert reply["stop_reason"] == "max_tokens"
    assert [block["input"] for block in reply["content"] if block["type"] == "tool_use"] == [{}]


def test_thinking(tokenizer: TextTokenizer) -> None:
    with open_api(make_state(tokenizer, template=THINKING_TEMPLATE)) as api:
        api.engine.say("hm</think>so")
        assert message(api).json()["content"] == [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "so"},
        ]
        found = named_events(message(api, stream=True).text)
        deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
        assert "".join(delta.get("thinking", "") for delta in deltas) == "hm"
        assert "".join(delta.get("text", "") for delta in deltas) == "so"


@pytest.mark.parametrize(("choice", "count"), [("auto", 1), ("any", 1), ("none", 0)])
def test_tool_choices(calling: Api, choice: str, count: int) -> None:
    calling.engine.say('{"name": "look", "arguments": {}}')
    assert message(calling, tools=TOOLS, tool_choice={"type": choice}).status_code == 200
    assert ("1 tools" in prompt_of(calling)) == bool(count)
    assert (calling.engine.submitted[0].grammar is not None) == (choice == "any")


def test_structured_output(api: Api) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    assert message(api, output_config={"format": form}).status_code == 200
    assert api.engine.submitted[0].grammar is not None


def test_sampling(api: Api) -> None:
    message(api, temperature=0.5, top_p=0.9, top_k=3, max_tokens=9)
    submitted = api.engine.submitted[0]
    sampling = submitted.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, submitted.max_new_tokens) == (0.5, 0.9, 3, 9)


def test_tokens_are_counted(api: Api) -> None:
    counted = api.post("/v1/messages/count_tokens", {"messages": HELLO, "system": "S"}).json()
    message(api, system="S")
    assert counted == {"input_tokens": len(api.engine.submitted[0].prompt)}


def test_an_engine_failure(api: Api) -> None:
    api.engine.fail_after = 1
    reply = message(api, stream=True)
    assert named_events(reply.text)[-1] == {
        "type": "error",
        "error": {"type": "api_error", "message": "Request failed during generation: the device is on fire"},
        "error_type": "generation",
        "request_id": reply.headers["x-request-id"],
    }
    assert message(api).status_code == 424


def test_explicit_nulls_mean_not_given(api: Api) -> None:
    required = ("messages", "max_tokens")
    nulls = dict.fromkeys(name for name in MessagesRequest.__struct_fields__ if name not in required)
    assert message(api, **nulls).status_code == 200


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"messages": HELLO}, "`max_tokens`"),
        ({"max_tokens": 1}, "`messages`"),
        ({"messages": [], "max_tokens": 1}, "`messages` must not be empty"),
        ({"messages": HELLO, "max_tokens": 0}, "`max_tokens`"),
        ({"messages": HELLO, "max_tokens": 1e3}, "$.max_tokens"),
        ({"messages": [{"role": "tool", "content": "x"}], "max_tokens": 1}, "`messages[0].role`"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 1}, "`messages[0].content[0]`"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}], "max_tokens": 1}, "tool_result"),
        ({"messages": [{"role": "assistant", "content": [{"type": "text"}]}], "max_tokens": 1}, "must be text"),
        ({"messages": HELLO, "max_tokens": 1, "system": [{"type": "image"}]}, "`system[0]`"),
        ({"messages": HELLO, "max_tokens": 1, "tools": [{"type": "bash_20250124", "name": "b"}]}, "`tools[0].type`"),
        ({"messages": HELLO, "max_tokens": 1, "tools": [{}]}, "$.tools[0]"),
        ({"messages": HELLO, "max_tokens": 1, "tool_choice": {"type": "odd"}}, "`tool_choice.type`"),
        ({"messages": HELLO, "max_tokens": 1, "thinking": {"type": "odd"}}, "`thinking.type`"),
        ({"messages": HELLO, "max_tokens": 1, "mcp_servers": [{}]}, "`mcp_servers`"),
        ({"messages": HELLO, "max_tokens": 1, "container": "x"}, "`container`"),
        ({"messages": HELLO, "max_tokens": 1, "output_config": {"format": {"type": "x"}}}, "`output_config"),
        ({"messages": HELLO, "max_tokens": 1, "temperature": -1}, "`temperature`"),
        ({"messages": HELLO, "max_tokens": 1, "stop_sequences": ["a"] * 5}, "`stop_sequences`"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_served_is_refused(shared_api: Api, body: dict[str, Any], part: str, stream: bool) -> None:
    reply = shared_api.post("/v1/messages", {**body, "stream": stream})
    assert reply.status_code == 422
    assert reply.json()["type"] == "error"
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert part in error_message(reply)
    assert shared_api.state.permits.taken == 0


@pytest.mark.parametrize(
    ("status", "kind", "headers"),
    [(401, "authentication_error", {}), (413, "request_too_large", {"x-api-key": "k"})],
)
def test_kinds_of_errors(tokenizer: TextTokenizer, status: int, kind: str, headers: dict[str, str]) -> None:
    with open_api(make_state(tokenizer, api_key="k", payload_limit=10)) as api:
        reply = message_with(api, headers)
    assert (reply.status_code, reply.json()["error"]["type"]) == (status, kind)


def message_with(api: Api, headers: dict[str, str]) -> Any:
    return api.http.post("/v1/messages", json={"messages": HELLO, "max_tokens": 1}, headers=headers)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("stop", "reason"), [('"a"', "stop_sequence"), ("</tool_call>", "tool_use")])
def test_a_stop_inside_a_call_and_behind_one(calling: Api, stream: bool, stop: str, reason: str) -> None:
    calling.engine.say('<tool_call>{"name": "look", "arguments": {"a": 1}}</tool_call>')
    reply = message(calling, tools=TOOLS, stop_sequences=[stop], stream=stream)
    body = reply.json() if not stream else named_events(reply.text)[-2]["delta"]
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, stop if reason == "stop_sequence" else None)
    if not stream:
        (block,) = body["content"]
        assert (block["type"], block["name"]) == ("tool_use", "look")
        assert block["input"] == ({"a": 1} if reason == "tool_use" else {})
