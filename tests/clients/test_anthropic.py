"""Anthropic's Python client."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.questions import AUTHOR, MESSAGES, WEATHER, WEATHER_MESSAGES
from tests.support.server import ServerProcess

pytestmark = pytest.mark.clients

ASKED: Any = {"model": "demo", "max_tokens": 16, "messages": MESSAGES, "extra_body": {"temperature": 0}}


@pytest.fixture
def client(server: ServerProcess) -> Any:
    from anthropic import Anthropic

    return Anthropic(base_url=server.url, api_key="unused", timeout=60, max_retries=0)


def test_messages(client: Any) -> None:
    reply = client.messages.create(**ASKED, system="You answer in few words.")
    assert reply.content[0].type == "text"
    assert reply.usage.output_tokens == 16 or reply.stop_reason == "end_turn"
    assert reply.usage.input_tokens > 5


def test_stream(client: Any) -> None:
    plain = client.messages.create(**ASKED)
    assert AUTHOR in plain.content[0].text
    with client.messages.stream(**ASKED) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == plain.content[0].text
    assert final.stop_reason == plain.stop_reason
    assert final.usage.output_tokens == plain.usage.output_tokens


def test_tools(client: Any) -> None:
    tool = {"name": "get_weather", "description": WEATHER["description"], "input_schema": WEATHER["parameters"]}
    asked = ASKED | {"messages": WEATHER_MESSAGES, "max_tokens": 64, "tools": [tool], "tool_choice": {"type": "any"}}
    reply = client.messages.create(**asked)
    [call] = [block for block in reply.content if block.type == "tool_use"]
    assert (call.name, call.input.keys()) == ("get_weather", {"city"})
    assert reply.stop_reason == "tool_use"
    with client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    assert [block.input for block in final.content if block.type == "tool_use"] == [call.input]


def test_errors_are_typed(client: Any) -> None:
    import anthropic

    with pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(**ASKED | {"extra_body": {"temperature": -1}})
    assert caught.value.status_code in {400, 422}
    assert "temperature" in str(caught.value)
