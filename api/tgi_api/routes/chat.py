"""``/v1/chat/completions`` and ``/chat_tokenize``."""

from __future__ import annotations

from litestar import post
from litestar.response.base import ASGIResponse
from msgspec import UNSET

from tgi_api.body import read_body
from tgi_api.call import Call
from tgi_api.collect import Collected, collect, returned_choices
from tgi_api.conversation import Conversation, chat_finish_reason, prepare_conversation, render_chat
from tgi_api.errors import AnyRequest
from tgi_api.headers import compute_time_header, reply_headers, stream_headers
from tgi_api.logprobs import chat_logprob
from tgi_api.openapi import GENERATION_ERRORS, OPERATION, TOKENIZER_ERRORS, Operation
from tgi_api.output import Prompt
from tgi_api.reply import json_reply, make_head, reply_usage
from tgi_api.schemas.chat import (
    AssistantMessage,
    CalledFunction,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    ChatRequest,
    ChatTokenizeResponse,
    MessageToolCall,
)
from tgi_api.sse import EventBuffer
from tgi_api.state import AppState, server_of
from tgi_api.streams.chat import ChatStream, ParsedChatStream
from tgi_api.streams.openai import OpenAIStream
from tgi_core.requests.replies import parse_reply

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
        return await answer_chat(request, call, server, body)


async def answer_chat(request: AnyRequest, call: Call, server: AppState, body: ChatRequest) -> ASGIResponse:
    """The reply to a chat request, or its stream."""
    conversation = await prepare_conversation(call, server, body)
    prompt = conversation.prompt
    kind = "chat.completion.chunk" if body.stream else "chat.completion"
    head = make_head(server, call.request_id, kind=kind, id_prefix="chatcmpl", model=body.model)
    logprobs = bool(body.logprobs)
    if body.stream:
        stream = OpenAIStream(EventBuffer(), head, body)
        choices = [
            _stream_choice(index, choice, server, conversation, stream, logprobs=logprobs)
            for index, choice in enumerate(prompt.choices())
        ]
        stream.add(choices)
        for choice in choices:
            call.start(choice)
        return call.stream(stream.buffer, stream_headers(server, [prompt]))
    (outputs,) = await collect(request, call, server.tokenizer, [prompt])
    reply = ChatCompletion(
        object="chat.completion",
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=head.system_fingerprint,
        choices=[
            _choice(index, output, conversation, logprobs=logprobs)
            for index, output in enumerate(returned_choices(outputs))
        ],
        usage=reply_usage([outputs]),
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
            errors=TOKENIZER_ERRORS,
            is_protected=False,
        )
    },
)
async def chat_tokenize(request: AnyRequest) -> ASGIResponse:
    """The prompt that the conversation becomes, and its tokens."""
    server = server_of(request)
    # TGI counts these requests, unlike those of the other routes that only tokenize.
    server.metrics.request_count.inc()
    body = await read_body(request, ChatRequest)
    with server.tokenizations.hold():
        text = await render_chat(server, body)
        return json_reply(ChatTokenizeResponse(await server.tokenizer.encode_with_offsets(text, False), text))


def _stream_choice(
    index: int, prompt: Prompt, server: AppState, conversation: Conversation, stream: OpenAIStream, *, logprobs: bool
) -> ChatStream:
    if not conversation.turn.is_parsed:
        return ChatStream(prompt, server.tokenizer, stream, index, logprobs=logprobs)
    return ParsedChatStream(prompt, server.tokenizer, stream, index, conversation, logprobs=logprobs)


def _choice(index: int, output: Collected, conversation: Conversation, *, logprobs: bool) -> ChatChoice:
    entries = None
    if logprobs:
        columns = zip(output.token_ids, output.texts, output.logprobs, output.alternatives, strict=True)
        entries = ChatLogprobs([chat_logprob(output, *column) for column in columns])
    if not conversation.turn.is_parsed:
        message = AssistantMessage("assistant", output.text)
        return ChatChoice(index, message, entries, output.finish_reason.openai)
    parser = conversation.make_parser()
    reply = parse_reply(parser, zip(output.texts, output.specials, strict=True))
    calls = [
        MessageToolCall(conversation.make_call_id(), "function", CalledFunction(call.name, call.arguments))
        for call in reply.calls
    ]
    message = AssistantMessage(
        "assistant",
        None if calls and not reply.content else reply.content,
        reply.reasoning or UNSET,
        calls or UNSET,
    )
    return ChatChoice(index, message, entries, chat_finish_reason(output.finish_reason, parser))


HANDLERS = (chat_completions, chat_tokenize)
