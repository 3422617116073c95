"""The demo model, which has never seen a tool, calls what it is held to call."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import pytest

from tests.support.server import ServerProcess

SCHEMAS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
        "$defs": {"city": {"enum": ["Paris", "Rome"]}},
    },
    "clock": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
BODY = {
    "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
    "tools": TOOLS,
    "temperature": 0,
    "max_tokens": 80,
}


def ask(server: ServerProcess, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions", json=BODY | body, timeout=120)


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"weather", "clock"}), ("clock", {"clock"}), ({"function": {"name": "weather"}}, {"weather"})],
)
def test_demanded_calls(server: ServerProcess, choice: Any, names: set[str]) -> None:
    (found,) = ask(server, tool_choice=choice).json()["choices"]
    assert found["finish_reason"] == "tool_calls"
    (call,) = found["message"]["tool_calls"]
    assert call["function"]["name"] in names
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])


def test_streamed_calls(server: ServerProcess) -> None:
    reply = ask(server, tool_choice="weather", stream=True)
    data = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    choices = [json.loads(item)["choices"][0] for item in data]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    (plain,) = ask(server, tool_choice="weather").json()["choices"][0]["message"]["tool_calls"]
    assert calls[0]["function"]["name"] == "weather"
    assert "".join(call["function"]["arguments"] for call in calls) == plain["function"]["arguments"]
    assert len(calls) > 3
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_a_call_that_is_cut_off(server: ServerProcess) -> None:
    (found,) = ask(server, tool_choice="weather", max_tokens=14).json()["choices"]
    assert found["finish_reason"] == "length"
    (call,) = found["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"


def test_no_calls(server: ServerProcess) -> None:
    (found,) = ask(server, tool_choice="none").json()["choices"]
    assert found["message"].get("tool_calls") is None
    assert found["message"]["content"]


def test_a_whole_conversation(server: ServerProcess) -> None:
    first = ask(server, tool_choice="weather").json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "20 degrees"}
    reply = ask(server, messages=[*BODY["messages"], first, result], max_tokens=20)  # type: ignore[misc]
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"]["content"] is not None


def test_an_answer_in_a_format_beside_tools(server: ServerProcess) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    response_format = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    message = ask(server, response_format=response_format).json()["choices"][0]["message"]
    if message.get("tool_calls") is None:
        jsonschema.validate(json.loads(message["content"]), schema)
    else:
        function = message["tool_calls"][0]["function"]
        jsonschema.validate(json.loads(function["arguments"]), SCHEMAS[function["name"]])
