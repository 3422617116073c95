"""Bodies, replies and events of /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tgi_api.schemas.sampling import TopP, bounds

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]

# -- requests ---------------------------------------------------------------------------------------------------------


class InputPart(msgspec.Struct, frozen=True):
    """A part of a message: text. Images and files are refused."""

    type: Annotated[
        str,
        bounds("What it is", enum=["input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text"]),
    ]
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, frozen=True):
    """A message, a call that the model made, what a call returned, or what the model thought."""

    type: Annotated[
        str | None,
        bounds(
            "What it is; a message when left out",
            enum=["message", "function_call", "function_call_output", "reasoning", None],
        ),
    ] = None
    role: Annotated[str | None, bounds("Who speaks, in a message", examples=["user"])] = None
    content: str | list[InputPart] | None = None
    call_id: Annotated[str | None, Meta(description="Which call, in a function_call and its output")] = None
    name: Annotated[str | None, Meta(description="The function, in a function_call")] = None
    arguments: Annotated[str | None, Meta(description="A JSON object as text, in a function_call")] = None
    output: Annotated[str | list[InputPart] | None, Meta(description="In a function_call_output")] = None
    summary: Annotated[list[InputPart] | None, Meta(description="In reasoning")] = None


class TextOptions(msgspec.Struct, frozen=True):
    """What the text is like."""

    format: Annotated[
        dict[str, Any] | None,
        bounds(
            "text, json_object, or a schema",
            examples=[{"type": "json_schema", "name": "n", "schema": {"type": "object"}}],
        ),
    ] = None
    verbosity: Annotated[str | None, Meta(description="Ignored")] = None


class ReasoningOptions(msgspec.Struct, frozen=True):
    """How to think."""

    effort: Annotated[str | None, bounds("For models whose template reads it", examples=["low"])] = None
    summary: Annotated[str | None, Meta(description="Ignored: reasoning is returned as it is")] = None
    generate_summary: Annotated[str | None, Meta(description="Ignored")] = None


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A turn of a conversation. An explicit null means "not given"."""

    input: Annotated[str | list[InputItem], Meta(description="What the user says, or the conversation so far")]
    instructions: Annotated[str | None, Meta(description="A system message in front of the input")] = None
    model: Annotated[str | None, bounds("Any name is accepted and echoed", examples=["tgi"])] = None
    max_output_tokens: Annotated[
        int | None, bounds("Most tokens to generate; the rest of the context when left out", minimum=1)
    ] = None
    temperature: Annotated[float | None, bounds("Divides the logits; 0 is greedy", minimum=0)] = None
    top_p: TopP = None
    stream: Annotated[bool | None, Meta(description="Answer with server-sent events")] = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: Annotated[list[dict[str, Any]] | None, Meta(description="Functions that the model may call")] = None
    tool_choice: Annotated[
        str | dict[str, Any] | None, Meta(description='"auto", "none", "required" or an object that names a function')
    ] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="False: at most one call")] = None
    metadata: Annotated[dict[str, str] | None, bounds("Echoed", maxProperties=16)] = None
    user: Annotated[str | None, Meta(description="Echoed")] = None
    store: Annotated[bool | None, Meta(description="Ignored: nothing is stored, as the reply says")] = None
    truncation: Annotated[str | None, bounds('Only "disabled"')] = None
    previous_response_id: Annotated[str | None, Meta(description="Refused: nothing is stored")] = None
    conversation: Annotated[Any, Meta(description="Refused: nothing is stored")] = None
    background: Annotated[bool | None, Meta(description="Refused")] = None
    prompt: Annotated[dict[str, Any] | None, Meta(description="Refused: nothing is stored")] = None
    top_logprobs: Annotated[int | None, bounds("Only 0", maximum=0)] = None
    include: Annotated[
        list[str] | None, bounds("Only what a reply has anyway", examples=[["reasoning.encrypted_content"]])
    ] = None


# -- replies ----------------------------------------------------------------------------------------------------------


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    """Text of a message."""

    text: str
    annotations: list[str] = []
    logprobs: list[str] = []


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """What the model thought."""

    text: str


class OutputMessage(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """What the model says."""

    id: str
    status: ItemStatus
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class OutputCall(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    """A function that the model calls; the arguments are a JSON object as text, cut off in an incomplete one."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class OutputReasoning(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    """What the model thinks."""

    id: str
    status: ItemStatus
    content: list[ReasoningText]
    summary: list[str] = []


OutputItem = OutputMessage | OutputCall | OutputReasoning


class InputTokensDetails(msgspec.Struct, frozen=True):
    """Of the input's tokens: how many were found in the prefix cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """Of the output's tokens: those of reasoning, which are not counted apart."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseError(msgspec.Struct, frozen=True):
    """Why a response has failed, in a stream."""

    code: str
    message: str


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The result. What comes after ``usage`` are the request's own values, or what stands for none."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus
    model: str
    output: list[OutputItem]
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    text: TextOptions
    reasoning: ReasoningOptions
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool = True
    metadata: dict[str, str]
    user: str | None = None
    truncation: Literal["disabled"] = "disabled"
    previous_response_id: None = None
    store: Literal[False] = False
    background: Literal[False] = False


# -- events -----------------------------------------------------------------------------------------------------------


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the whole response: created, in_progress, completed, incomplete or failed."""

    type: str
    sequence_number: int
    response: Response


class ItemEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An item of the output begins or is complete."""

    type: str
    sequence_number: int
    output_index: int
    item: OutputItem


class PartEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The text of an item begins or is complete."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningText


class TextEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of an item's text (``delta``), or all of it (``text``)."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str | None = None
    text: str | None = None
    logprobs: list[str] | None = None


class ArgumentsEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a call's arguments (``delta``), or all of them."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    delta: str | None = None
    name: str | None = None
    arguments: str | None = None


StreamEvent = ResponseEvent | ItemEvent | PartEvent | TextEvent | ArgumentsEvent
