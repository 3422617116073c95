"""A body of /v1/responses as a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tgi_api.errors import BodyTypeError
from tgi_api.schemas.chat import ChatRequest
from tgi_api.schemas.responses import InputItem, InputPart, ResponsesRequest
from tgi_core.errors import ValidationError

CHAT_FIELDS = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}
"""What fields of the chat are called here."""

_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_HARMLESS_INCLUDES = ("reasoning.encrypted_content",)


def read_responses_request(body: ResponsesRequest) -> ChatRequest:
    """The chat that the request asks for.

    Raises:
        ValidationError: it asks for what this server does not do, or an item is not well-formed.
        BodyTypeError: a value does not fit a chat.
    """
    _refuse_unsupported(body)
    chat = {
        "model": body.model,
        "messages": _messages(body),
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "response_format": _response_format(body),
        "reasoning_effort": body.reasoning.effort if body.reasoning is not None else None,
        "tools": None if body.tools is None else [_tool(index, tool) for index, tool in enumerate(body.tools)],
        "tool_choice": _tool_choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        # A conversation that ends with the assistant's words is answered by further words of its own.
        "continue_final_message": False,
    }
    try:
        return msgspec.convert(chat, ChatRequest)
    except msgspec.ValidationError as error:
        raise BodyTypeError(str(error)) from None


def _refuse_unsupported(body: ResponsesRequest) -> None:
    for name in ("previous_response_id", "conversation", "prompt"):
        if getattr(body, name) is not None:
            raise ValidationError(
                f"`{name}` is not supported: this server stores nothing. Send the whole conversation as `input`"
            )
    if body.background:
        raise ValidationError("`background` is not supported: leave it out, and use `stream` to see progress")
    if body.truncation not in (None, "disabled"):
        raise ValidationError('`truncation` must be "disabled": a conversation that is too long is refused')
    if body.top_logprobs:
        raise ValidationError("`top_logprobs` is not supported here: use /v1/chat/completions")
    for name in body.include or ():
        if name not in _HARMLESS_INCLUDES:
            raise ValidationError(f"`include` does not take {name[:80]!r}: this server has nothing of that kind")


def _messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    system = [body.instructions] if body.instructions is not None else []
    messages: list[dict[str, Any]] = []
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        for index, item in enumerate(body.input):
            place = f"input[{index}]"
            if item.type in (None, "message") and item.role in ("system", "developer") and not messages:
                # Templates know one system message, at the beginning.
                system.append(_text(f"{place}.content", item.content))
            else:
                _append_item(messages, place, item)
    if system:
        messages.insert(0, {"role": "system", "content": "\n\n".join(system)})
    return messages


def _append_item(messages: list[dict[str, Any]], place: str, item: InputItem) -> None:
    match item.type:
        case None | "message":
            _append_message(messages, place, item)
        case "reasoning":
            thought = _text(f"{place}.content", item.content if item.content is not None else item.summary or "")
            if thought:
                messages.append({"role": "assistant", "content": "", "reasoning_content": thought})
        case "function_call":
            _append_call(messages, place, item)
        case "function_call_output":
            if item.call_id is None:
                raise ValidationError(f"`{place}` must have `call_id`")
            content = _text(f"{place}.output", item.output)
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
        case _:
            raise ValidationError(
                f"`{place}.type` must be `message`, `function_call`, `function_call_output` or `reasoning`. "
                f"Given: {item.type[:80]!r}"
            )


def _append_message(messages: list[dict[str, Any]], place: str, item: InputItem) -> None:
    if item.role is None:
        raise ValidationError(f"`{place}.role` is missing")
    role = "system" if item.role == "developer" else item.role
    text = _text(f"{place}.content", item.content)
    if role == "assistant" and _lacks_content(messages):
        messages[-1]["content"] = text
    else:
        messages.append({"role": role, "content": text})


def _append_call(messages: list[dict[str, Any]], place: str, item: InputItem) -> None:
    if item.name is None or item.arguments is None or item.call_id is None:
        raise ValidationError(f"`{place}` must have `name`, `arguments` and `call_id`")
    function = {"name": item.name, "arguments": item.arguments}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})


def _lacks_content(messages: Sequence[dict[str, Any]]) -> bool:
    """Whether the last message is the assistant's and its text, behind reasoning or calls, is still to come."""
    return bool(messages) and messages[-1]["role"] == "assistant" and not messages[-1]["content"]


def _text(place: str, content: str | Sequence[InputPart] | None) -> str:
    if content is None:
        raise ValidationError(f"`{place}` is missing")
    if isinstance(content, str):
        return content
    pieces = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in (*_TEXT_PARTS, "refusal") or text is None:
            raise ValidationError(
                f"`{place}[{index}]` must be text: this server's models read nothing else. Given: {part.type[:80]!r}"
            )
        pieces.append(text)
    return "".join(pieces)


def _response_format(body: ResponsesRequest) -> dict[str, Any] | None:
    given = body.text.format if body.text is not None else None
    if given is None or given.get("type") != "json_schema" or "json_schema" in given:
        return given
    return {"type": "json_schema", "json_schema": {key: value for key, value in given.items() if key != "type"}}


def _tool(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise ValidationError(
            f"`tools[{index}].type` must be `function`: this server runs no tools of its own. "
            f"Given: {str(tool.get('type'))[:80]!r}"
        )
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "function":
        raise ValidationError("`tool_choice` must be `auto`, `none`, `required` or an object of the type `function`")
    return {"type": "function", "function": {"name": choice.get("name")}}
