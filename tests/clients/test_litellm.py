"""LiteLLM, through its providers for OpenAI's API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.clients.questions import AUTHOR, MESSAGES, PROMPT, TOOLS, WEATHER_MESSAGES
from tests.support.server import ServerProcess

pytestmark = pytest.mark.clients


@pytest.fixture
def asked(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Any:
    # Without it the library fetches a price list when it is imported.
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    where = {"api_base": f"{server.url}/v1", "api_key": "unused", "timeout": 60}
    return where | {"model": "openai/demo", "temperature": 0}


def test_chat(asked: Any) -> None:
    import litellm

    reply = litellm.completion(**asked, messages=MESSAGES, max_tokens=16)
    assert AUTHOR in reply.choices[0].message.content
    chunks = litellm.completion(**asked, messages=MESSAGES, max_tokens=16, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == reply.choices[0].message.content


def test_text_completion(asked: Any) -> None:
    import litellm

    reply = litellm.text_completion(**asked | {"model": "text-completion-openai/demo"}, prompt=PROMPT, max_tokens=6)
    assert "Paris" in reply.choices[0].text


def test_tools(asked: Any) -> None:
    import litellm

    reply = litellm.completion(
        **asked, messages=WEATHER_MESSAGES, tools=TOOLS, tool_choice="required", max_tokens=64
    ).choices[0]
    [call] = reply.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments).keys() == {"city"}
    assert reply.finish_reason == "tool_calls"


def test_errors_are_typed(asked: Any) -> None:
    import litellm
    import openai

    with pytest.raises(openai.APIStatusError, match="temperature"):
        litellm.completion(**asked | {"temperature": -1}, messages=MESSAGES, max_retries=0)
