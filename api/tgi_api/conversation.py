"""From the body of a chat to what the engine gets and what takes its reply apart: the same for all routes that chat."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace

from tgi_api.call import Call
from tgi_api.output import Prompt
from tgi_api.schemas.chat import ChatRequest
from tgi_api.state import AppState
from tgi_core.errors import ValidationError
from tgi_core.requests import FinishReason, GenerationOptions, validate_openai
from tgi_core.requests.chat_format import ChatRendering, ChatTurn
from tgi_core.requests.replies import ReplyParser
from tgi_core.requests.tools import ToolUse, read_tools

TOOL_CALLS = "tool_calls"
"""The finish reason of a reply that calls."""


class Conversation(msgspec.Struct, frozen=True):
    """A chat that is ready for the engine.

    Attributes:
        prompt: the rendered messages.
        turn: how the reply is read.
        keep_reasoning: whether the client wants to see the reasoning.
    """

    prompt: Prompt
    turn: ChatTurn
    keep_reasoning: bool

    def make_parser(self) -> ReplyParser:
        """What reads one reply."""
        return self.turn.reply_parser(keep_reasoning=self.keep_reasoning)

    def make_call_id(self) -> str:
        """A new id for a call in a reply."""
        return self.turn.make_call_id()


async def prepare_conversation(call: Call, server: AppState, body: ChatRequest) -> Conversation:
    """Check the request, admit it and render its messages.

    Raises:
        ValidationError: a value is out of its range, or asks for what this version cannot do.
        ToolError: a tool is not well-formed, or one is demanded that is not there.
        TemplateError: there is no template, or it refuses the messages.
        OverloadedError: not enough permits are free.
        EngineUnavailableError: the server drains.
    """
    options = validate_openai(body, server.limits)
    if body.echo:
        raise ValidationError("`echo` works on /v1/completions only")
    tools = _read_tools(body)
    call.admit(options.best_of, body.request_id)
    turn = await _render(server, body, tools)
    options = _constrain(server, turn, options)
    (prompt,) = await call.prepare(
        [turn.prompt], options, add_special_tokens=bool(body.add_special_tokens), field="messages"
    )
    return Conversation(prompt, turn, body.include_reasoning is not False)


async def render_chat(server: AppState, body: ChatRequest) -> str:
    """The prompt, made by the model's chat template.

    Raises:
        ToolError: a tool is not well-formed, or one is demanded that is not there.
        TemplateError: there is no template, or it refuses the messages.
        ValidationError: there is no message, or one without anything in it.
    """
    return (await _render(server, body, _read_tools(body))).prompt


def chat_finish_reason(reason: FinishReason, parser: ReplyParser) -> str:
    """OpenAI's finish reason of the reply that ``parser`` has read; one that was cut off inside a call says so."""
    has_called = parser.num_calls > 0 and not parser.has_cut_call and reason is not FinishReason.LENGTH
    return TOOL_CALLS if has_called else reason.openai


def _read_tools(body: ChatRequest) -> ToolUse | None:
    return read_tools(body.tools, body.tool_choice, body.parallel_tool_calls)


async def _render(server: AppState, body: ChatRequest, tools: ToolUse | None) -> ChatTurn:
    formats = server.require_chat()
    if not body.messages:
        raise ValidationError("`messages` must not be empty")
    for index, message in enumerate(body.messages):
        if message.content is None and not message.tool_calls and not message.refusal:
            raise ValidationError(f"`messages[{index}]` must have `content` or `tool_calls`")
    rendering = ChatRendering(
        tools=tools,
        tool_prompt=body.tool_prompt,
        documents=body.documents,
        template_kwargs=_template_variables(body),
        continue_final_message=body.continue_final_message,
        add_generation_prompt=body.add_generation_prompt is not False,
    )
    chosen = formats.choose(body.chat_template, has_tools=tools is not None)
    # In a thread, as a template may loop for long.
    return await asyncio.to_thread(chosen.render, msgspec.to_builtins(body.messages), rendering)


def _template_variables(body: ChatRequest) -> dict[str, object]:
    named = {"guideline": body.guideline, "reasoning_effort": body.reasoning_effort}
    return {name: value for name, value in named.items() if value is not None} | (body.chat_template_kwargs or {})


def _constrain(server: AppState, turn: ChatTurn, options: GenerationOptions) -> GenerationOptions:
    grammar = turn.constrain(options.grammar, server.tokenizer.special_token_ids)
    if grammar is None or grammar == options.grammar:
        return options
    if server.limits.grammar_obstacle:
        raise ValidationError(
            f"`tool_choice` demands a call, but this server constrains no output: {server.limits.grammar_obstacle}"
        )
    if options.sampling.allowed_token_ids:
        raise ValidationError("`allowed_token_ids` cannot be combined with a constraint on the output")
    return replace(options, grammar=grammar)
