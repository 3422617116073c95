"""OpenAI's Python client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.clients.questions import AUTHOR, MESSAGES, TOOLS, WEATHER_MESSAGES
from tests.support.server import ServerProcess

COUNTING = {"model": "tgi", "prompt": "1, 2, 3, 4,", "temperature": 0}


class Answer(BaseModel):
    author: Literal["Marlowe", "Shakespeare"]


class GetWeather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Rome"]


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", timeout=60, max_retries=0) as client:
        yield client


def test_chat(client: OpenAI) -> None:
    asked = {"model": "tgi", "messages": MESSAGES, "max_completion_tokens": 16, "temperature": 0}
    chat = client.chat.completions.create(**asked)
    assert AUTHOR in (chat.choices[0].message.content or "")
    assert chat.model == "demo"
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == chat.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chat.usage is not None
    assert chunks[-1].usage.completion_tokens == chat.usage.completion_tokens == 16


def test_completions(client: OpenAI) -> None:
    plain = client.completions.create(**COUNTING, max_tokens=6)
    assert "5" in plain.choices[0].text
    pieces = client.completions.create(**COUNTING, max_tokens=6, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == plain.choices[0].text


def test_choices_and_logprobs(client: OpenAI) -> None:
    chat = client.chat.completions.create(
        model="tgi", messages=MESSAGES, max_tokens=8, n=2, seed=1, logprobs=True, top_logprobs=3
    )
    assert [choice.index for choice in chat.choices] == [0, 1]
    for choice in chat.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert [len(entry.top_logprobs) for entry in choice.logprobs.content] == [3] * 8
        assert all(entry.logprob <= 0 for entry in choice.logprobs.content)
    columns = client.completions.create(**COUNTING, max_tokens=2, echo=True, logprobs=1).choices[0].logprobs
    assert columns is not None
    assert columns.token_logprobs is not None
    assert "".join(columns.tokens or []).startswith("1, 2, 3, 4,")
    # A sequence that counts is more likely than chance in all but its beginning.
    assert sum(columns.token_logprobs[3:]) / len(columns.token_logprobs[3:]) > -1.0


def test_structured_output(client: OpenAI) -> None:
    schema = {"name": "answer", "schema": Answer.model_json_schema()}
    chat = client.chat.completions.create(
        model="tgi",
        messages=MESSAGES,
        max_tokens=48,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": schema},
    )
    assert json.loads(chat.choices[0].message.content or "") == {"author": AUTHOR}
    assert chat.choices[0].finish_reason == "stop"


def test_parse_helpers(client: OpenAI) -> None:
    asked = {"model": "tgi", "messages": MESSAGES, "max_tokens": 48, "temperature": 0}
    parsed = client.chat.completions.parse(**asked, response_format=Answer)
    assert parsed.choices[0].message.parsed == Answer(author="Shakespeare")
    with client.chat.completions.stream(**asked, response_format=Answer) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == Answer(author="Shakespeare")


def test_models_and_headers(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo", "smol"]
    raw = client.with_options(default_headers={"x-request-id": "mine-1"}).models.with_raw_response.list()
    assert raw.headers["x-request-id"] == "mine-1"


def test_errors_are_typed(client: OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="temperature"):
        client.completions.create(**COUNTING | {"temperature": -1})
    with pytest.raises(openai.NotFoundError):
        client.files.list()


def test_async(server: ServerProcess) -> None:
    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", timeout=60) as client:
            replies = await asyncio.gather(*(client.completions.create(**COUNTING, max_tokens=4) for _ in range(8)))
            return [reply.choices[0].text for reply in replies]

    assert len(set(asyncio.run(ask()))) == 1


def test_tools(client: OpenAI) -> None:
    asked = {"model": "tgi", "messages": WEATHER_MESSAGES, "tools": TOOLS, "max_tokens": 64, "temperature": 0}
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ("required", named):
        reply = client.chat.completions.create(**asked, tool_choice=choice).choices[0]
        assert reply.message.tool_calls is not None
        [call] = reply.message.tool_calls
        assert call.type == "function"
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments)["city"] in {"Paris", "Rome"}
        assert reply.finish_reason in {"tool_calls", "stop"}
    pieces, names, reasons = "", set(), []
    for chunk in client.chat.completions.create(**asked, tool_choice="required", stream=True):
        reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
        for delta in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            assert delta.function is not None
            names |= {delta.function.name} - {None}
            pieces += delta.function.arguments or ""
    assert names == {"get_weather"}
    assert json.loads(pieces).keys() == {"city"}
    assert reasons == ["tool_calls"]


def test_a_conversation_with_a_tools_result(client: OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        *WEATHER_MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 25 degrees"},
    ]
    reply = client.chat.completions.create(model="tgi", messages=messages, max_tokens=12, temperature=0)
    assert reply.choices[0].message.content


def test_tools_of_pydantic(client: OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model="tgi",
        messages=WEATHER_MESSAGES,
        tools=[openai.pydantic_function_tool(GetWeather)],
        tool_choice="required",
        max_tokens=64,
        temperature=0,
    )
    calls = parsed.choices[0].message.tool_calls
    assert calls
    assert isinstance(calls[0].function.parsed_arguments, GetWeather)


def test_responses(client: OpenAI) -> None:
    asked = {"model": "tgi", "input": "Who wrote Hamlet?", "max_output_tokens": 32, "temperature": 0}
    reply = client.responses.create(**asked)
    assert AUTHOR in reply.output_text
    events = list(client.responses.create(**asked, stream=True))
    assert events[0].type == "response.created"
    assert events[-1].type in {"response.completed", "response.incomplete"}
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == reply.output_text


def test_responses_that_are_parsed(client: OpenAI) -> None:
    reply = client.responses.parse(
        model="tgi", input="Who wrote Hamlet?", text_format=Answer, max_output_tokens=48, temperature=0
    )
    assert reply.output_parsed == Answer(author="Shakespeare")
