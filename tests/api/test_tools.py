"""Calls and reasoning on ``/v1/chat/completions``, plain and streamed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.support.api import INFO, Api, error_message, events, make_state, open_api
from tests.support.text_tokenizers import encode
from tgi_api.schemas.chat import ChatCompletion, ChatCompletionChunk
from tgi_core.requests import TextTokenizer
from tgi_core.sampling.grammar import GrammarKind

ROOMY = replace(INFO, max_input_tokens=1000, max_total_tokens=1024)
HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.id }}:{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{{ m.tool_call_id }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}<tool_call></tool_call>{% endif %}{{ guideline }}{{ reasoning_effort }}"
    "<assistant>{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
CALLS = (
    'Sure.\n<tool_call>\n{"name": "weather", "arguments": {"city": "日本"}}\n</tool_call>\n<tool_call>{"name": "now"}'
)


@pytest.fixture
def api(tokenizer: TextTokenizer) -> Iterator[Api]:
    """A server whose model thinks in tags and calls like Qwen's."""
    state = make_state(tokenizer, info=ROOMY, template=TEMPLATE, templates={"short": "short {{ messages[0].content }}"})
    with open_api(state) as api:
        api.engine.say(CALLS)
        yield api


def chat(api: Api, **body: Any) -> Any:
    return api.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 200, **body})


def choice(api: Api, **body: Any) -> Any:
    reply = chat(api, **body)
    assert reply.status_code == 200, reply.text
    msgspec.json.decode(reply.content, type=ChatCompletion)
    return reply.json()["choices"][0]


def deltas(api: Api, **body: Any) -> list[Any]:
    *chunks, done = events(chat(api, stream=True, **body).text)
    assert done == "[DONE]"
    for chunk in chunks:
        msgspec.convert(chunk, ChatCompletionChunk)
    return [chunk["choices"][0] for chunk in chunks]


def join(choices: list[Any]) -> dict[str, Any]:
    """The message that streamed deltas make up, as OpenAI's clients put it together."""
    message: dict[str, Any] = {}
    for entry in choices:
        delta = entry["delta"]
        for key in ("content", "reasoning_content"):
            if delta.get(key):
                message[key] = message.get(key, "") + delta[key]
        for call in delta.get("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append({"id": call["id"], "type": call["type"], "function": {**call["function"]}})
            else:
                assert set(call) == {"index", "function"}
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message


def prompt_of(api: Api) -> str:
    return api.state.tokenizer.decode(api.engine.submitted[-1].prompt, skip_special_tokens=False)


def test_golden_reply(api: Api) -> None:
    text = re.sub(r'"call_[0-9a-f]{24}"', '"ID"', chat(api, tools=TOOLS).text)
    start = text.index('"choices":')
    assert text[start : text.index(',"usage"')] == (
        '"choices":[{"index":0,"message":{"role":"assistant","content":"Sure.","tool_calls":['
        '{"id":"ID","type":"function","function":{"name":"weather","arguments":"{\\"city\\": \\"日本\\"}"}},'
        '{"id":"ID","type":"function","function":{"name":"now","arguments":"{}"}}]},'
        '"logprobs":null,"finish_reason":"tool_calls"}]'
    )


def test_golden_stream(api: Api) -> None:
    api.engine.replies = [encode(api.state.tokenizer, 'Hi <tool_call>{"name":"now"}')]
    text = re.sub(r'"call_[0-9a-f]{24}"', '"ID"', chat(api, tools=TOOLS, stream=True).text)
    chunks = [block[block.index('"choices":') :] for block in text.split("\n\n")[:-2]]
    end = '"logprobs":null,"finish_reason":null}],"usage":null}'
    assert chunks == [
        '"choices":[{"index":0,"delta":{"role":"assistant","content":"H"},' + end,
        '"choices":[{"index":0,"delta":{"content":"i"},' + end,
        '"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"ID","type":"function",'
        '"function":{"name":"now","arguments":""}}]},' + end,
        '"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]},' + end,
        '"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}],"usage":null}',
    ]


def test_stream_and_plain_agree(api: Api) -> None:
    streamed = deltas(api, tools=TOOLS)
    message = join(streamed)
    plain = choice(api, tools=TOOLS)["message"]
    for entry in (*message["tool_calls"], *plain["tool_calls"]):
        assert re.fullmatch(r"call_[0-9a-f]{24}", entry.pop("id"))
    assert message == {key: value for key, value in plain.items() if key != "role"}
    assert [entry["finish_reason"] for entry in streamed][-2:] == [None, "tool_calls"]
    assert streamed[0]["delta"]["role"] == "assistant"
    assert all("role" not in entry["delta"] for entry in streamed[1:])


def test_arguments_come_as_they_are_generated(api: Api) -> None:
    pieces = [
        call["function"]["arguments"]
        for entry in deltas(api, tools=TOOLS)
        for call in entry["delta"].get("tool_calls", [])
        if call["index"] == 0
    ]
    assert len(pieces) > 5
    assert json.loads("".join(pieces)) == {"city": "日本"}


def test_ids_differ(api: Api) -> None:
    ids = [call["id"] for call in choice(api, tools=TOOLS)["message"]["tool_calls"]]
    ids += [call["id"] for call in choice(api, tools=TOOLS)["message"]["tool_calls"]]
    assert len(set(ids)) == 4


def test_calls_alone_leave_the_content_null(api: Api) -> None:
    api.engine.say('<tool_call>{"name": "now"}</tool_call>')
    assert choice(api, tools=TOOLS)["message"]["content"] is None
    assert "content" not in join(deltas(api, tools=TOOLS))


@pytest.mark.parametrize("body", [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}])
def test_without_tools_calls_are_text(api: Api, body: Any) -> None:
    found = choice(api, **body)
    assert found["message"] == {"role": "assistant", "content": CALLS}
    assert found["finish_reason"] == "stop"
    assert "tools" not in prompt_of(api)


def test_at_most_one_call(api: Api) -> None:
    calls = choice(api, tools=TOOLS, parallel_tool_calls=False)["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["weather"]
    assert len(join(deltas(api, tools=TOOLS, parallel_tool_calls=False))["tool_calls"]) == 1


def test_calls_that_are_cut_off(api: Api) -> None:
    for tokens in range(1, len(api.engine.reply)):
        found = choice(api, tools=TOOLS, max_tokens=tokens)
        assert found["finish_reason"] == "length"
        streamed = deltas(api, tools=TOOLS, max_tokens=tokens)
        assert streamed[-1]["finish_reason"] == "length"
        message, joined = found["message"], join(streamed)
        assert joined.get("content") == (message["content"] or None)
        assert [call["function"] for call in joined.get("tool_calls", [])] == [
            call["function"] for call in message.get("tool_calls", [])
        ]


def test_a_malformed_call_is_text(api: Api) -> None:
    api.engine.say("<tool_call>oops</tool_call>")
    found = choice(api, tools=TOOLS)
    assert found["message"] == {"role": "assistant", "content": "<tool_call>oops</tool_call>"}
    assert found["finish_reason"] == "stop"


def test_choices_have_calls_of_their_own(api: Api) -> None:
    api.engine.replies = [encode(api.state.tokenizer, text) for text in ('<tool_call>{"name":"now"}', "Hi")] * 2
    choices = chat(api, tools=TOOLS, n=2).json()["choices"]
    assert [entry["finish_reason"] for entry in choices] == ["tool_calls", "stop"]
    streamed = deltas(api, tools=TOOLS, n=2)
    assert "tool_calls" in join([entry for entry in streamed if entry["index"] == 0])
    assert join([entry for entry in streamed if entry["index"] == 1]) == {"content": "Hi"}


def test_logprobs_of_every_token(api: Api) -> None:
    plain = choice(api, tools=TOOLS, logprobs=True)["logprobs"]["content"]
    streamed = deltas(api, tools=TOOLS, logprobs=True)
    entries = [entry for part in streamed if part["logprobs"] for entry in part["logprobs"]["content"]]
    assert entries == plain
    assert len(plain) == len(api.engine.reply) + 1
    assert join(streamed)["content"] == "Sure."


class TestDemandedCalls:
    @pytest.mark.parametrize("tool_choice", ["required", "now", {"type": "function", "function": {"name": "now"}}])
    def test_the_engine_is_held_to_them(self, api: Api, tool_choice: Any) -> None:
        chat(api, tools=TOOLS, tool_choice=tool_choice)
        (grammar,) = api.grammars.checked
        assert grammar.kind is GrammarKind.EBNF
        assert ('"weather"' in grammar.source.replace("\\", "")) == (tool_choice == "required")
        assert api.engine.submitted[0].grammar is not None

    def test_free_replies_are_free(self, api: Api) -> None:
        chat(api, tools=TOOLS)
        assert api.grammars.checked == []

    def test_an_answer_in_a_format_stands_beside_calls(self, api: Api) -> None:
        chat(api, tools=TOOLS, response_format={"type": "json_object"})
        (grammar,) = api.grammars.checked
        assert "(calls | answer)" in grammar.source

    def test_reasoning_comes_before_an_answer_in_a_format(self, tokenizer: TextTokenizer) -> None:
        with open_api(make_state(tokenizer, info=ROOMY, template="<assistant><think>\n{# </think> #}")) as api:
            api.engine.say('hm\n</think>\n\n{"a":1}')
            found = choice(api, response_format={"type": "json_object"})
            assert api.grammars.checked[0].source.startswith("start: thought")
            assert found["message"] == {"role": "assistant", "content": '{"a":1}', "reasoning_content": "hm"}

    def test_a_server_without_grammars(self, tokenizer: TextTokenizer) -> None:
        with open_api(make_state(tokenizer, info=ROOMY, template=TEMPLATE, grammars=False)) as api:
            api.engine.say("Hi")
            assert choice(api, tools=TOOLS)["message"]["content"] == "Hi"
            reply = chat(api, tools=TOOLS, tool_choice="required")
            assert reply.status_code == 422
            assert "--disable-grammar-support" in error_message(reply)

    def test_with_a_list_of_allowed_tokens(self, api: Api) -> None:
        reply = chat(api, tools=TOOLS, tool_choice="required", allowed_token_ids=[5])
        assert reply.status_code == 422
        assert "allowed_token_ids" in error_message(reply)


@pytest.mark.parametrize(
    "body",
    [
        {"tools": TOOLS, "tool_choice": "nothing"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nothing"}}},
        {"tool_choice": "required"},
        {"tools": [{"type": "function"}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "objekt"}}}]},
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat_tokenize"])
def test_what_is_refused(api: Api, path: str, body: Any) -> None:
    reply = api.post(path, {"messages": HELLO, **body})
    assert (reply.status_code, reply.json()["error_type"]) == (422, "tool_error")
    assert error_message(reply).startswith("Tool error: `tool")
    assert api.metric('tgi_request_failure{err="tool"}') == (path == "/v1/chat/completions")
    assert api.engine.submitted == []


def test_completions_have_no_tools(api: Api) -> None:
    reply = api.post("/v1/completions", {"prompt": "x", "tools": TOOLS})
    assert reply.status_code == 422
    assert "`tools` works on /v1/chat/completions only" in error_message(reply)


def test_history_keeps_its_structure(api: Api) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rom"}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "20"}]},
    ]
    api.post("/v1/chat/completions", {"messages": messages})
    assert prompt_of(api) == '<user>hello\n<assistant>call_1:weather{"city": "Rom"}\n<tool>20call_1\n<assistant>'


class TestReasoning:
    @pytest.fixture(autouse=True)
    def _think(self, api: Api) -> None:
        api.engine.say("<think>\nLet me see.\n</think>\n\nYes.")

    def test_it_is_apart(self, api: Api) -> None:
        found = choice(api)
        assert found["message"] == {"role": "assistant", "content": "Yes.", "reasoning_content": "Let me see."}
        assert found["finish_reason"] == "stop"
        streamed = deltas(api)
        assert join(streamed) == {"content": "Yes.", "reasoning_content": "Let me see."}
        assert streamed[-1]["delta"] == {"content": ""}

    def test_it_can_be_left_out(self, api: Api) -> None:
        assert choice(api, include_reasoning=False)["message"] == {"role": "assistant", "content": "Yes."}
        assert join(deltas(api, include_reasoning=False)) == {"content": "Yes."}

    def test_it_can_be_switched_off(self, api: Api) -> None:
        api.engine.say("Yes.")
        message = choice(api, chat_template_kwargs={"enable_thinking": False})["message"]
        assert message == {"role": "assistant", "content": "Yes."}
        assert prompt_of(api).endswith("<think>\n\n</think>\n\n")

    def test_it_may_be_cut_off(self, api: Api) -> None:
        found = choice(api, max_tokens=12)
        assert found["finish_reason"] == "length"
        assert found["message"]["content"] == ""
        assert "Let me see.".startswith(found["message"]["reasoning_content"])

    def test_calls_follow_it(self, api: Api) -> None:
        api.engine.say('<think>hm</think><tool_call>{"name": "now"}</tool_call>')
        found = choice(api, tools=TOOLS)
        assert found["message"]["reasoning_content"] == "hm"
        assert found["message"]["content"] is None
        assert found["finish_reason"] == "tool_calls"


def test_variables_of_templates(api: Api) -> None:
    chat(api, guideline="G", reasoning_effort="high")
    assert prompt_of(api) == "<user>hello\nGhigh<assistant>"


def test_named_templates(api: Api) -> None:
    chat(api, chat_template="short")
    assert prompt_of(api) == "short hello"
    reply = chat(api, chat_template="long")
    assert (reply.status_code, reply.json()["error_type"]) == (422, "template_error")
    assert "`default`, `short`" in error_message(reply)


@pytest.mark.parametrize("stop", ['"city"', "本", None])
def test_a_call_that_a_stop_or_the_model_itself_cuts_off(api: Api, stop: str | None) -> None:
    if stop is None:
        api.engine.say('<tool_call>\n{"name": "weather", "arguments": {"city": ')
    given: dict[str, Any] = {} if stop is None else {"stop": stop}
    found = choice(api, tools=TOOLS, **given)
    assert found["finish_reason"] == "stop"
    (call,) = found["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert '{"city": "日本"}'.startswith(call["function"]["arguments"])
    streamed = deltas(api, tools=TOOLS, **given)
    assert streamed[-1]["finish_reason"] == "stop"
    assert [call["function"] for call in join(streamed)["tool_calls"]] == [call["function"]]


def test_a_stop_behind_a_complete_call(api: Api) -> None:
    assert choice(api, tools=TOOLS, stop="</tool_call>")["finish_reason"] == "tool_calls"
    assert deltas(api, tools=TOOLS, stop="</tool_call>")[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("tool_choice", ["auto", "required", "f"])
@pytest.mark.parametrize(
    "schema", [{"type": "array"}, {"type": "string"}, {"type": ["string", "null"]}, {"anyOf": [{"type": "string"}]}]
)
def test_parameters_that_are_no_object(api: Api, tool_choice: str, schema: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    reply = chat(api, tools=[tool], tool_choice=tool_choice)
    assert (reply.status_code, reply.json()["error_type"]) == (422, "tool_error")
    assert "`tools[0].function.parameters` must be an object schema" in error_message(reply)


@pytest.mark.parametrize("field", ["functions", "function_call"])
def test_the_old_form_of_tools_is_refused(api: Api, field: str) -> None:
    reply = chat(api, **{field: [{"name": "f"}]})
    assert reply.status_code == 422
    assert f"`{field}` is not supported: it is an old form of `tool" in error_message(reply)


def test_a_refusal_in_the_history(api: Api) -> None:
    messages = [*HELLO, {"role": "assistant", "content": None, "refusal": "I will not."}, *HELLO]
    chat(api, messages=messages)
    assert prompt_of(api) == "<user>hello\n<assistant>I will not.\n<user>hello\n<assistant>"


def test_parameters_that_may_be_an_object_are_held_to_one(api: Api) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": ["object", "null"]}}}
    assert chat(api, tools=[tool], tool_choice="required").status_code == 200
    (grammar,) = api.grammars.checked
    assert "null" not in grammar.source
