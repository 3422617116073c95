"""Bodies, replies and events of /v1/messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tgi_api.schemas.sampling import TopK, TopP, bounds

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]

# -- requests ---------------------------------------------------------------------------------------------------------


class ContentBlock(msgspec.Struct, frozen=True):
    """A part of a message: text, thinking, a call or its result. Images and documents are refused."""

    type: Annotated[
        str,
        bounds("What it is", enum=["text", "thinking", "redacted_thinking", "tool_use", "tool_result"]),
    ]
    text: str | None = None
    thinking: str | None = None
    id: Annotated[str | None, Meta(description="Of a tool_use")] = None
    name: Annotated[str | None, Meta(description="The function, in a tool_use")] = None
    input: Annotated[dict[str, Any] | None, Meta(description="The arguments, in a tool_use")] = None
    tool_use_id: Annotated[str | None, Meta(description="Which call, in a tool_result")] = None
    content: Annotated[str | list[ContentBlock] | None, Meta(description="In a tool_result")] = None
    is_error: Annotated[bool | None, Meta(description="Ignored: the content says it")] = None


class MessageParam(msgspec.Struct, frozen=True):
    """One message of the conversation; a last one by the assistant is continued."""

    role: Annotated[str, bounds("Who speaks", enum=["user", "assistant", "system"])]
    content: str | list[ContentBlock]


class ToolDefinition(msgspec.Struct, frozen=True):
    """A function that the model may call."""

    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: Annotated[str | None, bounds("Only custom", enum=["custom", None])] = None


class ToolChoice(msgspec.Struct, frozen=True):
    """Which function to call."""

    type: Annotated[str, bounds("Whether to call", enum=["auto", "any", "tool", "none"])]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    """Whether to think, for models whose template reads it."""

    type: Annotated[str, bounds("Whether to think", enum=["enabled", "disabled", "adaptive"])]
    budget_tokens: Annotated[int | None, Meta(description="Ignored")] = None


class OutputConfig(msgspec.Struct, frozen=True):
    """What the output is like."""

    format: Annotated[
        dict[str, Any] | None,
        bounds("A schema that the output fits", examples=[{"type": "json_schema", "schema": {"type": "object"}}]),
    ] = None
    effort: Annotated[str | None, bounds("For models whose template reads it", examples=["low"])] = None


class CountTokensRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation. An explicit null means "not given"."""

    messages: list[MessageParam]
    model: Annotated[str | None, bounds("Any name is accepted and echoed", examples=["tgi"])] = None
    system: Annotated[str | list[ContentBlock] | None, Meta(description="What the model should know first")] = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountTokensRequest, frozen=True, kw_only=True):
    """A conversation to continue."""

    max_tokens: Annotated[int, bounds("Most tokens to generate", minimum=1)]
    temperature: Annotated[float | None, bounds("Divides the logits; 0 is greedy", minimum=0)] = None
    top_p: TopP = None
    top_k: TopK = None
    stop_sequences: Annotated[
        list[str] | None, Meta(description="Texts that end the generation; they are not returned")
    ] = None
    stream: Annotated[bool | None, Meta(description="Answer with server-sent events")] = None
    mcp_servers: Annotated[list[Any] | None, Meta(description="Refused unless it is empty")] = None
    container: Annotated[Any, Meta(description="Refused")] = None


# -- replies ----------------------------------------------------------------------------------------------------------


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """What the model says."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """What the model thinks; nothing is signed."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A function that the model calls; its input is empty when ``max_tokens`` cut the arguments off."""

    id: str
    name: str
    input: dict[str, Any]


ReplyBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(msgspec.Struct, frozen=True):
    """Token counts; those of the input that were found in the prefix cache are counted apart."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class MessageReply(msgspec.Struct, frozen=True, kw_only=True):
    """The result."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ReplyBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class CountTokensReply(msgspec.Struct, frozen=True):
    """Tokens of the rendered conversation."""

    input_tokens: int


# -- events -----------------------------------------------------------------------------------------------------------


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The message begins; it has no content yet."""

    message: MessageReply


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins; it is empty yet."""

    index: int
    content_block: ReplyBlock


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """A piece of a text block."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """A piece of a thinking block."""

    thinking: str


class InputDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """A piece of the JSON of a call's input."""

    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """A piece of a block."""

    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """A block is complete."""

    index: int


class StopDelta(msgspec.Struct, frozen=True):
    """Why the message ends."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The message ends."""

    delta: StopDelta
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """Nothing follows."""


MessageEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
