"""``/v1/chat/completions`` and ``/chat_tokenize``."""

from __future__ import annotations

import asyncio

import msgspec
from litestar import post
from litestar.response.base import ASGIResponse

from tgi_api.body import read_body
from tgi_api.call import Call
from tgi_api.collect import Collected, collect
from tgi_api.errors import AnyRequest
from tgi_api.headers import compute_time_header, reply_headers, stream_headers
from tgi_api.logprobs import chat_logprob
from tgi_api.openapi import BODY_ERRORS, GENERATION_ERRORS, OPERATION, Operation
from tgi_api.reply import ReplyHead, json_reply, make_head
from tgi_api.schemas.chat import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    ChatRequest,
    ChatTokenizeResponse,
)
from tgi_api.schemas.openai import Usage
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
    with Call(server) as call:
        body = await read_body(request, ChatRequest)
        options = validate_openai(body, server.limits)
        call.admit()
        text = await _render(server, body)
        prompt = await call.prepare(text, options, add_special_tokens=False)
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        head = make_head(server, kind=kind, id_prefix="chatcmpl", model=body.model)
        if body.stream:
            stream = OpenAIStream(EventBuffer(), head, 1, include_usage=body.includes_usage)
            call.start(ChatStream(prompt, server.tokenizer, stream, logprobs=bool(body.logprobs)))
            return call.stream(stream.buffer, stream_headers(server, [prompt]))
        (output,) = await collect(request, call, server.tokenizer, [prompt], include_stop=False)
        reply = _completion(head, output, logprobs=bool(body.logprobs))
        return json_reply(reply, reply_headers(server, call, [output]) | compute_time_header(call, output))


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


def _completion(head: ReplyHead, output: Collected, *, logprobs: bool) -> ChatCompletion:
    prompt_tokens, completion_tokens = len(output.prompt.token_ids), output.generation.num_tokens
    return ChatCompletion(
        object="chat.completion",
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=head.system_fingerprint,
        choices=[
            ChatChoice(
                index=0,
                message=AssistantMessage("assistant", output.text),
                logprobs=ChatLogprobs(list(map(chat_logprob, output.texts, output.logprobs))) if logprobs else None,
                finish_reason=output.finish_reason.openai,
            )
        ],
        usage=Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens),
    )


HANDLERS = (chat_completions, chat_tokenize)
