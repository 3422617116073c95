"""``/v1/responses``: OpenAI's Responses API without its memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.support.api import EOS_ID, INFO, MODEL_ID, Api, error_message, make_state, named_events, open_api
from tests.support.text_tokenizers import encode
from tgi_api.schemas.responses import Response, ResponsesRequest
from tgi_core.requests import TextTokenizer

CALLING_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.reasoning_content or '' }}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "{% endfor %}{% if tools %}{{ tools | length }} tools <tool_call>{% endif %}<think></think>"
)
THINKING_TEMPLATE = "{{ messages[0].content }}{# answers begin behind </think> #}<think>"
ROOMY = msgspec.structs.replace(INFO, max_input_tokens=500, max_total_tokens=1000)
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]


@pytest.fixture
def calling(tokenizer: TextTokenizer) -> Iterator[Api]:
    """A server whose model thinks and calls."""
    with open_api(make_state(tokenizer, template=CALLING_TEMPLATE, info=ROOMY)) as api:
        yield api


def respond(api: Api, given: Any = "hi", **body: Any) -> Any:
    """POST a response."""
    return api.post("/v1/responses", {"input": given, **body})


def prompt_of(api: Api, index: int = 0) -> str:
    """The text that the engine got."""
    return api.state.tokenizer.decode(api.engine.submitted[index].prompt, False)


def test_golden_body(api: Api) -> None:
    reply = respond(api)
    request_id = reply.headers["x-request-id"]
    tokens = len(api.engine.submitted[0].prompt)
    body = reply.json()
    assert body.pop("created_at") > 1_700_000_000
    assert body == {
        "id": f"resp_{request_id}",
        "object": "response",
        "status": "completed",
        "model": MODEL_ID,
        "output": [
            {
                "type": "message",
                "id": f"msg_{request_id}_0",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": " fox jumps", "annotations": [], "logprobs": []}],
            }
        ],
        "error": None,
        "incomplete_details": None,
        "usage": {
            "input_tokens": tokens,
            "input_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens + 3,
        },
        "instructions": None,
        "max_output_tokens": None,
        "temperature": 1.0,
        "top_p": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": None},
        "reasoning": {"effort": None, "summary": None, "generate_summary": None},
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "metadata": {},
        "user": None,
        "truncation": "disabled",
        "previous_response_id": None,
        "store": False,
        "background": False,
    }
    msgspec.json.decode(reply.content, type=Response)
    assert {"x-compute-time", "x-prompt-tokens", "x-generated-tokens"} <= set(reply.headers)


def test_the_request_is_echoed(api: Api) -> None:
    given = {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 9, "metadata": {"a": "b"}, "user": "me"}
    body = respond(api, instructions="Be brief", model="other", **given).json()
    assert body["model"] == "other"
    assert body["instructions"] == "Be brief"
    assert {name: body[name] for name in given} == given
    sampling = api.engine.submitted[0].sampling
    assert (sampling.temperature, sampling.top_p, api.engine.submitted[0].max_new_tokens) == (0.5, 0.9, 9)


def test_the_conversation_is_rendered_as_a_chat(api: Api) -> None:
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "A"}, {"type": "input_text", "text": "B"}]},
        {"type": "message", "role": "user", "content": "hi"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ho", "annotations": []}]},
        {"role": "user", "content": "so?"},
    ]
    assert respond(api, items, instructions="First").status_code == 200
    assert prompt_of(api) == "<system>First\n\nAB\n<user>hi\n<assistant>ho\n<user>so?\n<assistant>"


def test_the_assistants_last_message_is_not_continued(api: Api) -> None:
    respond(api, [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}])
    assert prompt_of(api).endswith("<assistant>ho\n<assistant>")


def test_calls_and_reasoning_go_back_into_the_conversation(calling: Api) -> None:
    items = [
        {"role": "user", "content": "u"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "secret"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "v"},
    ]
    assert respond(calling, items, tools=TOOLS).status_code == 200
    assert prompt_of(calling) == (
        '<user>u<assistant>t<tool_call>{"name": "look", "arguments": {"x": 1}}</tool_call>'
        '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
        "<tool>one<tool>two<assistant>a<user>v1 tools <tool_call><think></think>"
    )


def test_golden_stream(api: Api) -> None:
    reply = respond(api, stream=True, max_output_tokens=2)
    assert reply.headers["content-type"] == "text/event-stream"
    request_id = reply.headers["x-request-id"]
    item = f'"item_id":"msg_{request_id}_0","output_index":0,"content_index":0'
    part = '"part":{"type":"output_text","text":"%s","annotations":[],"logprobs":[]}'
    text = re.sub(r'"response":\{.*\}\}', '"response":{}}', reply.text)
    message = f'"item":{{"type":"message","id":"msg_{request_id}_0","status":"%s","content":%s,"role":"assistant"}}'
    whole = '[{"type":"output_text","text":" fox jumps","annotations":[],"logprobs":[]}]'
    expected = [
        ("response.created", '"sequence_number":0,"response":{}'),
        ("response.in_progress", '"sequence_number":1,"response":{}'),
        ("response.output_item.added", '"sequence_number":2,"output_index":0,' + message % ("in_progress", "[]")),
        ("response.content_part.added", f'"sequence_number":3,{item},' + part % ""),
        ("response.output_text.delta", f'{item},"delta":" fox","logprobs":[],"sequence_number":4'),
        ("response.output_text.delta", f'{item},"delta":" jumps","logprobs":[],"sequence_number":5'),
        ("response.output_text.done", f'"sequence_number":6,{item},"text":" fox jumps","logprobs":[]'),
        ("response.content_part.done", f'"sequence_number":7,{item},' + part % " fox jumps"),
        ("response.output_item.done", '"sequence_number":8,"output_index":0,' + message % ("incomplete", whole)),
        ("response.incomplete", '"sequence_number":9,"response":{}'),
    ]
    assert text == "".join(f'event: {name}\ndata: {{"type":"{name}",{data}}}\n\n' for name, data in expected)


def test_a_stream_ends_with_what_a_plain_reply_is(calling: Api) -> None:
    calling.engine.say('hm</think>Look: <tool_call>{"name": "look", "arguments": {"a": [1, 2]}}</tool_call>')
    plain = respond(calling, tools=TOOLS, request_id="r").json()
    found = named_events(respond(calling, tools=TOOLS, stream=True).text)
    last = found[-1]["response"]
    assert found[-1]["type"] == "response.completed"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [shape(item) for item in last["output"]] == [shape(item) for item in plain["output"]]
    kinds = [item["type"] for item in plain["output"]]
    assert kinds[-1] == "function_call"
    assert "message" in kinds
    call = plain["output"][-1]
    assert (call["name"], msgspec.json.decode(call["arguments"])) == ("look", {"a": [1, 2]})
    deltas = [event["delta"] for event in found if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == last["output"][-1]["arguments"]
    opened = [event["item"]["id"] for event in found if event["type"] == "response.output_item.added"]
    assert opened == [item["id"] for item in last["output"]]
    assert len(set(opened)) == len(opened)
    for event in found:
        if "item_id" in event:
            assert event["item_id"] == opened[event["output_index"]]


def shape(item: dict[str, Any]) -> dict[str, Any]:
    """An item without its random ids."""
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}


def test_reasoning_is_an_item_of_its_own(tokenizer: TextTokenizer) -> None:
    with open_api(make_state(tokenizer, template=THINKING_TEMPLATE)) as api:
        api.engine.say("hm</think>so")
        found = named_events(respond(api, stream=True).text)
        thought, message = found[-1]["response"]["output"]
    assert thought["type"] == "reasoning"
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert thought["summary"] == []
    assert message["content"][0]["text"] == "so"
    kinds = [event["type"] for event in found]
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    assert "".join(event["delta"] for event in found if event["type"] == "response.reasoning_text.delta") == "hm"


def test_a_reply_without_text_has_no_items(api: Api) -> None:
    api.engine.reply = []
    assert respond(api).json()["output"] == []
    assert [event["type"] for event in named_events(respond(api, stream=True).text)] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "name": "n", "strict": True, "schema": {"type": "object"}},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        {"type": "json_object"},
    ],
)
def test_structured_output(api: Api, form: dict[str, Any]) -> None:
    assert respond(api, text={"format": form}).status_code == 200
    grammar = api.engine.submitted[0].grammar
    assert grammar is not None
    assert msgspec.json.decode(grammar.source.lower()) == {"type": "object"}


def test_named_tools(calling: Api) -> None:
    calling.engine.say('{"name": "look", "arguments": {}}')
    choice = {"type": "function", "name": "look"}
    assert respond(calling, tools=TOOLS, tool_choice=choice).status_code == 200
    assert calling.engine.submitted[0].grammar is not None
    assert respond(calling, tools=TOOLS, tool_choice={"type": "function", "name": "x"}).status_code == 422


def test_an_engine_failure_in_a_stream(api: Api) -> None:
    api.engine.fail_after = 1
    *_, last = named_events(respond(api, stream=True).text)
    assert last["type"] == "response.failed"
    response = last["response"]
    assert response["status"] == "failed"
    assert response["error"] == {
        "code": "server_error",
        "message": "Request failed during generation: the device is on fire",
    }
    assert response["output"][0]["status"] == "incomplete"
    assert respond(api).status_code == 424


def test_explicit_nulls_mean_not_given(api: Api) -> None:
    nulls = dict.fromkeys(name for name in ResponsesRequest.__struct_fields__ if name != "input")
    assert respond(api, **nulls).status_code == 200


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({}, "`input`"),
        ({"input": []}, "`input` must not be empty"),
        ({"input": 3}, "$.input"),
        ({"input": [{"content": "x"}]}, "`input[0].role` is missing"),
        ({"input": [{"role": "user"}]}, "`input[0].content` is missing"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "`input[0]` must have"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "`call_id`"),
        ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "`input[0].output` is missing"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "`input[0].type` must be"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "must be text"),
        ({"input": "x", "previous_response_id": "resp_1"}, "stores nothing"),
        ({"input": "x", "conversation": {"id": "x"}}, "stores nothing"),
        ({"input": "x", "prompt": {"id": "x"}}, "stores nothing"),
        ({"input": "x", "background": True}, "`background`"),
        ({"input": "x", "truncation": "auto"}, "`truncation`"),
        ({"input": "x", "top_logprobs": 1}, "/v1/chat/completions"),
        ({"input": "x", "include": ["web_search_call.results"]}, "`include`"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "`tools[0].type` must be `function`"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0]"),
        ({"input": "x", "tool_choice": {"type": "web_search"}}, "`tool_choice`"),
        ({"input": "x", "text": {"format": {"type": "odd"}}}, "`text.format.type`"),
        ({"input": "x", "max_output_tokens": 0}, "strictly positive"),
        ({"input": "x", "temperature": -1}, "`temperature`"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_served_is_refused(shared_api: Api, body: dict[str, Any], part: str, stream: bool) -> None:
    reply = shared_api.post("/v1/responses", {**body, "stream": stream})
    assert reply.status_code == 422
    assert part in error_message(reply)
    assert shared_api.state.permits.taken == 0


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_nothing_is_stored(shared_api: Api, method: str) -> None:
    reply = shared_api.http.request(method, "/v1/responses/resp_1")
    assert (reply.status_code, reply.json()["error_type"]) == (404, "response_not_found")
    assert "stores no responses" in error_message(reply)


def test_the_end_of_sequence_is_counted(api: Api) -> None:
    assert api.engine.reply[-1] != EOS_ID
    assert respond(api).json()["usage"]["output_tokens"] == len(api.engine.reply) + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_is_incomplete(calling: Api, stream: bool) -> None:
    calling.engine.say('<tool_call>{"name": "look", "arguments": {"a": [1, 2, 3, 4]}}</tool_call>')
    cut_after = len(encode(calling.state.tokenizer, '<tool_call>{"name": "look", "arguments": {"a": [1, 2'))
    reply = respond(calling, tools=TOOLS, max_output_tokens=cut_after, stream=stream)
    body = named_events(reply.text)[-1]["response"] if stream else reply.json()
    (item,) = body["output"]
    assert (body["status"], item["type"], item["status"]) == ("incomplete", "function_call", "incomplete")
    assert '{"a": [1, 2, 3, 4]}'.startswith(item["arguments"])
    if stream:
        (done,) = [event for event in named_events(reply.text) if event["type"] == "response.output_item.done"]
        assert done["item"] == item
