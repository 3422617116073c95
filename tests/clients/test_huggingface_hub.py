"""InferenceClient of huggingface_hub."""

from __future__ import annotations

import asyncio
import json

import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient

from tests.clients.questions import ANSWER, AUTHOR, AUTHOR_SCHEMA, MESSAGES, PROMPT, TOOLS, WEATHER_MESSAGES
from tests.support.server import ServerProcess


@pytest.fixture
def client(server: ServerProcess) -> InferenceClient:
    return InferenceClient(model=server.url, provider="hf-inference", timeout=60)


def test_text_generation(client: InferenceClient) -> None:
    plain = client.text_generation(PROMPT, max_new_tokens=6, details=True)
    assert ANSWER in plain.generated_text
    streamed = "".join(client.text_generation(PROMPT, max_new_tokens=6, stream=True))
    # Route "/" puts the prompt in front unless asked not to, as TGI does for a text-generation model.
    assert plain.generated_text == PROMPT + streamed
    *_, last = client.text_generation(PROMPT, max_new_tokens=6, stream=True, details=True)
    assert last.details is not None
    assert last.details.generated_tokens == 6


def test_grammar(client: InferenceClient) -> None:
    text = client.text_generation("Who wrote Hamlet? In JSON:", grammar={"type": "json", "value": AUTHOR_SCHEMA})
    assert json.loads(text.removeprefix("Who wrote Hamlet? In JSON:")).keys() == {"author"}


def test_chat(client: InferenceClient) -> None:
    chat = client.chat_completion(MESSAGES, max_tokens=16, temperature=0, logprobs=True, top_logprobs=2)
    assert AUTHOR in (chat.choices[0].message.content or "")
    assert chat.choices[0].logprobs is not None
    assert len(chat.choices[0].logprobs.content[0].top_logprobs) == 2
    chunks = list(client.chat_completion(MESSAGES, max_tokens=16, temperature=0, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == chat.choices[0].message.content


def test_response_format(client: InferenceClient) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": AUTHOR_SCHEMA, "strict": True}}
    chat = client.chat_completion(MESSAGES, max_tokens=48, temperature=0, response_format=schema)
    assert json.loads(chat.choices[0].message.content or "") == {"author": AUTHOR}


def test_tools(client: InferenceClient) -> None:
    asked = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 64, "temperature": 0}
    message = client.chat_completion(WEATHER_MESSAGES, **asked).choices[0].message
    assert message.tool_calls is not None
    [call] = message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments).keys() == {"city"}


def test_async(server: ServerProcess) -> None:
    async def ask() -> tuple[str, str]:
        async with AsyncInferenceClient(model=server.url, timeout=60) as client:
            plain = await client.chat_completion(MESSAGES, max_tokens=16, temperature=0)
            stream = await client.chat_completion(MESSAGES, max_tokens=16, temperature=0, stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            return plain.choices[0].message.content or "", "".join(pieces)

    plain, streamed = asyncio.run(ask())
    assert AUTHOR in plain
    assert streamed == plain


def test_endpoint(client: InferenceClient) -> None:
    assert client.get_endpoint_info()["model_id"] == "demo"
    assert client.health_check()
