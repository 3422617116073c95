"""``/v1/chat/completions`` and ``/chat_tokenize``."""

from __future__ import annotations

import asyncio

import msgspec
from litestar import post
from litestar.response.base import ASGIResponse

from tgi_api.body import read_body
from tgi_api.call import Call
from tgi_api.collect import Collected, collect, returned_choices
from tgi_api.errors import AnyRequest
from tgi_api.headers import compute_time_header, reply_headers, stream_headers
from tgi_api.logprobs import chat_logprob
from tgi_api.openapi import BODY_ERRORS, GENERATION_ERRORS, OPERATION, Operation
from tgi_api.reply import json_reply, make_head, reply_usage
from tgi_api.schemas.chat import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    ChatRequest,
    ChatTokenizeResponse,
)
from tgi_api.sse import EventBuffer
from tgi_api.state import AppState, server_of
from tgi_api.streams.chat import ChatStream
from tgi_api.streams.openai import OpenAIStream
from tgi_core.errors import ValidationError
from tgi_core.requests import validate_openai

_TAG = "OpenAI"


@post(
    "/v1/chat/completions",
    status_code=200,
    opt={
        OPERATION: Operation(
            "Continue a conversation, plain or streamed",
            _TAG,
            ChatRequest,
            ChatCompletion,
            ChatCompletionChunk,
            errors=GENERATION_ERRORS,
        )
    },
)
async def chat_completions(request: AnyRequest) -> ASGIResponse:
    """A chat completion, or a stream of its chunks."""
    server = server_of(request)
    with Call(server, request) as call:
        body = await read_body(request, ChatRequest)
        options = validate_openai(body, server.limits)
        if body.echo:
            raise ValidationError("`echo` works on /v1/completions only")
        call.admit(options.best_of)
        text = await _render(server, body)
        (prompt,) = await call.prepare([text], options, add_special_tokens=False)
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        head = make_head(server, kind=kind, id_prefix="chatcmpl", model=body.model)
        logprobs = bool(body.logprobs)
        if body.stream:
            stream = OpenAIStream(EventBuffer(), head, [prompt], include_usage=body.includes_usage)
            for index, choice in enumerate(prompt.choices()):
                call.start(ChatStream(choice, server.tokenizer, stream, index, logprobs=logprobs))
            return call.stream(stream.buffer, stream_headers(server, [prompt]))
        (outputs,) = await collect(request, call, server.tokenizer, [prompt])
        reply = ChatCompletion(
            object="chat.completion",
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=[
                _choice(index, output, logprobs=logprobs) for index, output in enumerate(returned_choices(outputs))
            ],
            usage=reply_usage([prompt], outputs),
        )
        headers = reply_headers(server, call, [prompt], outputs) | compute_time_header(call, outputs)
        return json_reply(reply, headers)


@post(
    "/chat_tokenize",
    status_code=200,
    opt={
        OPERATION: Operation(
            "Render and tokenize a conversation",
            "Tokenization",
            ChatRequest,
            ChatTokenizeResponse,
            errors=BODY_ERRORS,
            is_protected=False,
        )
    },
)
async def chat_tokenize(request: AnyRequest) -> ASGIResponse:
    """The prompt that the conversation becomes, and its tokens."""
    server = server_of(request)
    body = await read_body(request, ChatRequest)
    text = await _render(server, body)
    with server.permits.hold():
        return json_reply(ChatTokenizeResponse(await server.tokenizer.encode_with_offsets(text, False), text))


async def _render(server: AppState, body: ChatRequest) -> str:
    """The prompt, made by the model's chat template.

    Raises:
        TemplateError: there is no template, or it refuses the messages.
        ValidationError: there is no message, or one without anything in it.
    """
    template = server.require_template()
    if not body.messages:
        raise ValidationError("`messages` must not be empty")
    for index, message in enumerate(body.messages):
        if message.content is None and not message.tool_calls:
            raise ValidationError(f"`messages[{index}]` must have `content` or `tool_calls`")
    # In a thread, as a template may loop for long.
    return await asyncio.to_thread(
        template.render,
        msgspec.to_builtins(body.messages),
        tools=None if body.tool_choice == "none" else body.tools,
        documents=body.documents,
        continue_final_message=body.continue_final_message,
        add_generation_prompt=body.add_generation_prompt is not False,
        template_kwargs=body.chat_template_kwargs,
    )


def _choice(index: int, output: Collected, *, logprobs: bool) -> ChatChoice:
    entries = None
    if logprobs:
        columns = zip(output.token_ids, output.texts, output.logprobs, output.alternatives, strict=True)
        entries = ChatLogprobs([chat_logprob(output, *column) for column in columns])
    return ChatChoice(index, AssistantMessage("assistant", output.text), entries, output.finish_reason.openai)


HANDLERS = (chat_completions, chat_tokenize)
