"""``/v1/messages``: Anthropic's Messages API."""

from __future__ import annotations

from litestar import post
from litestar.response.base import ASGIResponse

from tgi_api.body import read_body
from tgi_api.call import Call
from tgi_api.collect import collect
from tgi_api.conversation import prepare_conversation, render_chat
from tgi_api.errors import AnyRequest
from tgi_api.headers import compute_time_header, reply_headers, stream_headers
from tgi_api.openapi import GENERATION_ERRORS, OPERATION, TOKENIZER_ERRORS, Operation
from tgi_api.reply import json_reply, reply_model
from tgi_api.schemas.messages import (
    CountTokensReply,
    CountTokensRequest,
    MessageEvent,
    MessageReply,
    MessagesRequest,
)
from tgi_api.sse import EventBuffer
from tgi_api.state import server_of
from tgi_api.streams.messages import MessageStream, MessageWriter
from tgi_api.streams.parsed import reply_events
from tgi_api.translate import fields_named
from tgi_api.translate.messages import CHAT_FIELDS, read_messages_request

_TAG = "Anthropic"


@post(
    "/v1/messages",
    status_code=200,
    opt={
        OPERATION: Operation(
            "Continue a conversation, plain or streamed",
            _TAG,
            MessagesRequest,
            MessageReply,
            MessageEvent,
            errors=GENERATION_ERRORS,
        )
    },
)
async def create_message(request: AnyRequest) -> ASGIResponse:
    """A message, or a stream of its events."""
    server = server_of(request)
    with Call(server, request) as call:
        body = await read_body(request, MessagesRequest)
        chat = read_messages_request(body)
        with fields_named(CHAT_FIELDS):
            conversation = await prepare_conversation(call, server, chat)
        prompt = conversation.prompt
        writer = MessageWriter(call.request_id, reply_model(server, body.model), conversation)
        if body.stream:
            buffer = EventBuffer()
            call.start(MessageStream(conversation, server.tokenizer, buffer, writer))
            return call.stream(buffer, stream_headers(server, [prompt]))
        (outputs,) = await collect(request, call, server.tokenizer, [prompt])
        (output,) = outputs
        for event in reply_events(conversation, output):
            writer.add(event, output)
        writer.finish(output.finish_reason, output)
        headers = reply_headers(server, call, [prompt], outputs) | compute_time_header(call, outputs)
        return json_reply(writer.message, headers)


@post(
    "/v1/messages/count_tokens",
    status_code=200,
    opt={
        OPERATION: Operation(
            "Count a conversation's tokens", _TAG, CountTokensRequest, CountTokensReply, errors=TOKENIZER_ERRORS
        )
    },
)
async def count_tokens(request: AnyRequest) -> ASGIResponse:
    """How many tokens the rendered conversation has."""
    server = server_of(request)
    body = await read_body(request, CountTokensRequest)
    chat = read_messages_request(body)
    with server.tokenizations.hold(), fields_named(CHAT_FIELDS):
        text = await render_chat(server, chat)
        return json_reply(CountTokensReply(len(await server.tokenizer.encode(text, False))))


HANDLERS = (create_message, count_tokens)
