"""Bodies and replies of /v1/chat/completions and /chat_tokenize."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tgi_api.schemas.openai import OpenAIRequest, Usage
from tgi_api.schemas.sampling import bounds
from tgi_core.requests.tokenizer import TokenSpan

FinishReason = Annotated[str, Meta(extra_json_schema={"enum": ["stop", "length", "tool_calls"]})]


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text in a message."""

    text: str


class ImageUrl(msgspec.Struct, frozen=True):
    """Where an image is."""

    url: str


class ImagePart(msgspec.Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image in a message. Refused: no model with vision is served yet."""

    image_url: ImageUrl


class FunctionCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a function: its arguments are JSON, as text or as an object; TGI also has them as parameters."""

    name: str
    arguments: str | dict[str, Any] | None = None
    parameters: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that an assistant message asked for."""

    function: FunctionCall
    id: str | None = None
    type: str | None = None


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of the conversation."""

    role: Annotated[str, bounds("Who speaks", examples=["user"])]
    content: str | list[TextPart | ImagePart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    tool_plan: str | None = None


class ChatRequest(OpenAIRequest, frozen=True, kw_only=True):
    """A conversation to continue."""

    messages: list[Message]
    logprobs: Annotated[bool | None, Meta(description="Return the log-probability of each token")] = None
    top_logprobs: Annotated[
        int | None, bounds("Most likely tokens to return at each position; needs logprobs", minimum=0, maximum=20)
    ] = None
    tools: Annotated[list[dict[str, Any]] | None, Meta(description="Functions that the model may call")] = None
    tool_choice: Annotated[
        str | dict[str, Any] | None,
        Meta(description='"auto", "none", "required", or the function to call: its name, or an object that names it'),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="False: at most one call. By default as many as the model makes")
    ] = None
    tool_prompt: Annotated[
        str | None, Meta(description="How to call functions, told to the model after the list of them")
    ] = None
    include_reasoning: Annotated[bool | None, Meta(description="Return the model's reasoning; true by default")] = None
    reasoning_effort: Annotated[
        str | None, bounds("How much to think, for models whose template reads it", examples=["low"])
    ] = None
    guideline: Annotated[str | None, Meta(description="A variable of templates of guard models")] = None
    chat_template: Annotated[
        str | None, bounds("The name of one of the model's chat templates", examples=["default"])
    ] = None
    continue_final_message: Annotated[
        bool | None, Meta(description="Go on with the last message; by default when it is the assistant's")
    ] = None
    add_generation_prompt: Annotated[bool | None, Meta(description="Begin the assistant's turn; true by default")] = (
        None
    )
    documents: Annotated[list[dict[str, Any]] | None, Meta(description="Documents for the chat template")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Meta(description="More variables for the chat template")] = (
        None
    )


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the most likely tokens at a position."""

    token: str
    logprob: float | None
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """The log-probability of a generated token; ``bytes`` is its text in UTF-8."""

    token: str
    logprob: float | None
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """One entry for each generated token."""

    content: list[TokenLogprob]


class CalledFunction(msgspec.Struct, frozen=True):
    """What to call; the arguments are a JSON object, as text."""

    name: str
    arguments: str


class MessageToolCall(msgspec.Struct, frozen=True):
    """A call that the model makes."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(msgspec.Struct, frozen=True):
    """The answer; its content is null when there are only calls."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[MessageToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(msgspec.Struct, frozen=True):
    """The result of a chat."""

    object: Literal["chat.completion"]
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The name of a function, or a piece of its arguments."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The beginning of the call number index, with its id, or a piece of it."""

    index: Annotated[int, Meta(ge=0)]
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of the answer; the first one has the role."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """A piece of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletionChunk(msgspec.Struct, frozen=True):
    """One event of a streamed chat. Usage comes, when asked for, in a last chunk without choices."""

    object: Literal["chat.completion.chunk"]
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | None


class ChatTokenizeResponse(msgspec.Struct, frozen=True):
    """The rendered conversation and its tokens."""

    tokenize_response: list[TokenSpan]
    templated_text: str
