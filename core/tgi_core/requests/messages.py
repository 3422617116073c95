"""The messages of a conversation as chat templates expect them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tgi_core.errors import ValidationError

Message = dict[str, Any]


def prepare_messages(messages: Sequence[Mapping[str, Any]], template: str) -> list[Message]:
    """Text content, calls with their arguments as objects, and no roles or calls that the template would pass over.

    Everything else in a message stays as it is. OpenAI's role ``developer`` becomes ``system``, and calls become text,
    where ``template``, a template's source, has no word of them.

    Raises:
        ValidationError: a part of a message is not text.
    """
    return [_prepare_message(index, message, template) for index, message in enumerate(messages)]


def instruct(messages: Sequence[Mapping[str, Any]], instruction: str) -> list[Message]:
    """The conversation with an instruction: at the end of its system message, else before its first user message.

    Not every template takes a system message, so none is added.
    """
    changed = [dict(message) for message in messages]
    first = changed[0]
    if first.get("role") in ("system", "developer"):
        first["content"] = _join(_text(0, first.get("content")), instruction)
        return changed
    index = next((index for index, message in enumerate(changed) if message.get("role") == "user"), 0)
    changed[index]["content"] = _join(instruction, _text(index, changed[index].get("content")))
    return changed


def append_to_last(messages: Sequence[Mapping[str, Any]], text: str) -> list[Message]:
    """The conversation with ``text`` at the end of its last message."""
    changed = [dict(message) for message in messages]
    changed[-1]["content"] = _join(_text(len(changed) - 1, changed[-1].get("content")), text)
    return changed


def has_text_arguments(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a call in the conversation came with its arguments as JSON text."""
    calls = (call for message in messages for call in message.get("tool_calls") or ())
    functions = (call.get("function") or {} for call in calls)
    return any(isinstance(function.get(key), str) for function in functions for key in ("arguments", "parameters"))


def arguments_as_text(messages: Sequence[Message]) -> list[Message]:
    """Prepared messages, with the arguments of calls as JSON text."""
    return [
        {**message, "tool_calls": [_with_text_arguments(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _prepare_message(index: int, message: Mapping[str, Any], template: str) -> Message:
    prepared = dict(message)
    calls = message.get("tool_calls")
    content = message.get("content")
    if content is None and message.get("refusal"):
        # Templates have no word of refusals, which are what the assistant said.
        content = prepared["content"] = message["refusal"]
    if isinstance(content, Sequence) and not isinstance(content, str):
        prepared["content"] = _text(index, content)
    if calls:
        prepared["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
        if content is None:
            # Templates join content with text before they look at the calls.
            prepared["content"] = ""
        if "tool_calls" not in template:
            functions = [call.get("function", call) for call in prepared["tool_calls"]]
            lines = "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
            prepared["content"] = _join(prepared["content"], lines)
    if message.get("role") == "developer" and "developer" not in template:
        prepared["role"] = "system"
    return prepared


def _with_parsed_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    if "parameters" in function and "arguments" not in function:
        rest = {key: value for key, value in function.items() if key != "parameters"}
        return _with_parsed_arguments({**call, "function": {**rest, "arguments": function["parameters"]}})
    if not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}


def _with_text_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or isinstance(function.get("arguments"), str):
        return dict(call)
    return {**call, "function": {**function, "arguments": json.dumps(function.get("arguments"), ensure_ascii=False)}}


def _text(index: int, content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_part_text(f"messages[{index}].content[{place}]", part) for place, part in enumerate(content))


def _part_text(place: str, part: Any) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": kind}:
            raise ValidationError(
                f"`{place}` is of type `{kind}`, but this server reads only text. Send parts of type `text`"
            )
    raise ValidationError(f"`{place}` has no `type`")


def _join(first: str, second: str) -> str:
    return f"{first}\n\n{second}" if first else second
