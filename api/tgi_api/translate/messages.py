"""A body of /v1/messages as a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tgi_api.errors import BodyTypeError
from tgi_api.schemas.chat import ChatRequest
from tgi_api.schemas.messages import ContentBlock, CountTokensRequest, MessagesRequest, ToolChoice, ToolDefinition
from tgi_core.errors import ValidationError

CHAT_FIELDS = {"stop": "stop_sequences", "response_format.json_schema": "output_config.format"}
"""What fields of the chat are called here."""

_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ENABLE_THINKING = {"enabled": True, "disabled": False}


def read_messages_request(body: CountTokensRequest) -> ChatRequest:
    """The chat that the request asks for.

    Raises:
        ValidationError: it asks for what this server does not do, or a block is not well-formed.
        BodyTypeError: a value does not fit a chat.
    """
    choice = body.tool_choice
    chat: dict[str, Any] = {
        "model": body.model,
        "messages": _messages(body),
        "tools": None if body.tools is None else [_tool(index, tool) for index, tool in enumerate(body.tools)],
        "tool_choice": _tool_choice(choice),
        "parallel_tool_calls": False if choice is not None and choice.disable_parallel_tool_use else None,
        "chat_template_kwargs": _thinking(body),
        "response_format": _response_format(body),
        "reasoning_effort": body.output_config.effort if body.output_config is not None else None,
    }
    if isinstance(body, MessagesRequest):
        if body.mcp_servers or body.container is not None:
            name = "mcp_servers" if body.mcp_servers else "container"
            raise ValidationError(f"`{name}` is not supported: this server runs no tools of its own")
        chat |= {
            "max_tokens": body.max_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "stop": body.stop_sequences,
        }
    try:
        return msgspec.convert(chat, ChatRequest)
    except msgspec.ValidationError as error:
        raise BodyTypeError(str(error)) from None


def _messages(body: CountTokensRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": _text("system", body.system)})
    for index, message in enumerate(body.messages):
        place = f"messages[{index}]"
        if message.role not in ("user", "assistant", "system"):
            raise ValidationError(
                f"`{place}.role` must be `user`, `assistant` or `system`. Given: {message.role[:80]!r}"
            )
        if isinstance(message.content, str):
            messages.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            messages.append(_assistant_message(f"{place}.content", message.content))
        else:
            messages += _messages_of_blocks(f"{place}.content", message.role, message.content)
    return messages


def _assistant_message(place: str, blocks: Sequence[ContentBlock]) -> dict[str, Any]:
    """Text, thinking and calls as the fields of one message."""
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(blocks):
        match block:
            case ContentBlock(type="text", text=str(text)):
                texts.append(text)
            case ContentBlock(type="thinking", thinking=str(thinking)):
                thoughts.append(thinking)
            case ContentBlock(type="redacted_thinking"):
                pass
            case ContentBlock(type="tool_use", id=str(call_id), name=str(name)):
                arguments = msgspec.json.encode(block.input or {}).decode()
                calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
            case _:
                raise _not_readable(f"{place}[{index}]", block)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _messages_of_blocks(place: str, role: str, blocks: Sequence[ContentBlock]) -> list[dict[str, Any]]:
    """The results of calls as a message each, then the text."""
    messages: list[dict[str, Any]] = []
    texts = []
    for index, block in enumerate(blocks):
        if block.type == "tool_result" and block.tool_use_id is not None:
            content = "" if block.content is None else _text(f"{place}[{index}].content", block.content)
            messages.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
        elif block.type == "text" and block.text is not None:
            texts.append(block.text)
        else:
            raise _not_readable(f"{place}[{index}]", block)
    if texts or not messages:
        messages.append({"role": role, "content": "".join(texts)})
    return messages


def _text(place: str, content: str | Sequence[ContentBlock]) -> str:
    if isinstance(content, str):
        return content
    for index, block in enumerate(content):
        if block.type != "text" or block.text is None:
            raise _not_readable(f"{place}[{index}]", block)
    return "".join(block.text for block in content if block.text is not None)


def _not_readable(place: str, block: ContentBlock) -> ValidationError:
    return ValidationError(
        f"`{place}` must be text, or a well-formed call, result or thought in its place: this server's models read "
        f"nothing else. Given: {block.type[:80]!r}"
    )


def _tool(index: int, tool: ToolDefinition) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise ValidationError(
            f"`tools[{index}].type` must be `custom`: this server runs no tools of its own. Given: {tool.type[:80]!r}"
        )
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema or {"type": "object"}}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type not in _TOOL_CHOICES:
        raise ValidationError(
            f"`tool_choice.type` must be `auto`, `any`, `tool` or `none`. Given: {choice.type[:80]!r}"
        )
    return _TOOL_CHOICES[choice.type]


def _thinking(body: CountTokensRequest) -> dict[str, Any] | None:
    if body.thinking is None or body.thinking.type == "adaptive":
        return None
    if body.thinking.type not in _ENABLE_THINKING:
        raise ValidationError(
            f"`thinking.type` must be `enabled`, `disabled` or `adaptive`. Given: {body.thinking.type[:80]!r}"
        )
    return {"enable_thinking": _ENABLE_THINKING[body.thinking.type]}


def _response_format(body: CountTokensRequest) -> dict[str, Any] | None:
    given = body.output_config.format if body.output_config is not None else None
    if given is None:
        return None
    if given.get("type") != "json_schema":
        raise ValidationError("`output_config.format.type` must be `json_schema`")
    return {"type": "json_schema", "json_schema": {"schema": given.get("schema")}}
