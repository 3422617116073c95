"""``/v1/responses``: OpenAI's Responses API without its memory."""

from __future__ import annotations

import time

from litestar import HttpMethod, post, route
from litestar.response.base import ASGIResponse

from tgi_api.body import read_body
from tgi_api.call import Call
from tgi_api.collect import collect
from tgi_api.conversation import prepare_conversation
from tgi_api.errors import AnyRequest, ResponseNotFoundError
from tgi_api.headers import compute_time_header, reply_headers, stream_headers
from tgi_api.openapi import GENERATION_ERRORS, OPERATION, Operation
from tgi_api.reply import json_reply, reply_model
from tgi_api.schemas.responses import (
    ArgumentsEvent,
    ItemEvent,
    PartEvent,
    ReasoningOptions,
    Response,
    ResponseEvent,
    ResponsesRequest,
    TextEvent,
    TextOptions,
)
from tgi_api.sse import EventBuffer
from tgi_api.state import AppState, server_of
from tgi_api.streams.parsed import reply_events
from tgi_api.streams.responses import ResponseStream, ResponseWriter
from tgi_api.translate import fields_named
from tgi_api.translate.responses import CHAT_FIELDS, read_responses_request

_TAG = "OpenAI"


@post(
    "/v1/responses",
    status_code=200,
    opt={
        OPERATION: Operation(
            "Answer a turn of a conversation, plain or streamed; nothing is stored",
            _TAG,
            ResponsesRequest,
            Response,
            (ResponseEvent, ItemEvent, PartEvent, TextEvent, ArgumentsEvent),
            errors=GENERATION_ERRORS,
        )
    },
)
async def create_response(request: AnyRequest) -> ASGIResponse:
    """A response, or a stream of its events."""
    server = server_of(request)
    with Call(server, request) as call:
        body = await read_body(request, ResponsesRequest)
        chat = read_responses_request(body)
        with fields_named(CHAT_FIELDS):
            conversation = await prepare_conversation(call, server, chat)
        prompt = conversation.prompt
        writer = ResponseWriter(_begin(server, call, body), conversation)
        if body.stream:
            buffer = EventBuffer()
            call.start(ResponseStream(conversation, server.tokenizer, buffer, writer))
            return call.stream(buffer, stream_headers(server, [prompt]))
        (outputs,) = await collect(request, call, server.tokenizer, [prompt])
        (output,) = outputs
        for event in reply_events(conversation, output):
            writer.add(event)
        writer.finish(output.finish_reason, output)
        headers = reply_headers(server, call, [prompt], outputs) | compute_time_header(call, outputs)
        return json_reply(writer.response, headers)


@route(
    "/v1/responses/{response_id:str}",
    http_method=[HttpMethod.GET, HttpMethod.DELETE],
    status_code=200,
    sync_to_thread=False,
    opt={OPERATION: Operation("Refused: nothing is stored", _TAG, errors=(404,))},
)
def stored_response() -> ASGIResponse:
    """A readable refusal."""
    raise ResponseNotFoundError(
        "This server stores no responses: keep what POST /v1/responses replies, and send the conversation as `input`"
    )


def _begin(server: AppState, call: Call, body: ResponsesRequest) -> Response:
    return Response(
        id=f"resp_{call.request_id}",
        created_at=int(time.time()),
        status="in_progress",
        model=reply_model(server, body.model),
        output=[],
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        text=body.text if body.text is not None and body.text.format else TextOptions({"type": "text"}),
        reasoning=body.reasoning or ReasoningOptions(),
        tools=body.tools or [],
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        metadata=body.metadata or {},
        user=body.user,
    )


HANDLERS = (create_response, stored_response)
