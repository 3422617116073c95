"""TGI's own routes: ``/``, ``/generate`` and ``/generate_stream``."""

from __future__ import annotations

from litestar import post
from litestar.response.base import ASGIResponse

from tgi_api.body import read_body
from tgi_api.call import Call
from tgi_api.collect import Collected, collect
from tgi_api.errors import AnyRequest
from tgi_api.headers import compute_time_header, reply_headers, stream_headers
from tgi_api.numbers import float32_or_none
from tgi_api.openapi import GENERATION_ERRORS, OPERATION, Operation
from tgi_api.output import Prompt
from tgi_api.reply import json_reply
from tgi_api.schemas.generate import (
    CompatGenerateRequest,
    Details,
    GenerateRequest,
    GenerateResponse,
    StreamResponse,
    Token,
)
from tgi_api.sse import EventBuffer
from tgi_api.state import AppState, server_of
from tgi_api.streams.generate import GenerateStream
from tgi_core.requests import validate_generate

_TAG = "Text Generation Inference"


@post(
    "/generate",
    status_code=200,
    opt={
        OPERATION: Operation(
            "Generate text", _TAG, body=GenerateRequest, reply=GenerateResponse, errors=GENERATION_ERRORS
        )
    },
)
async def generate(request: AnyRequest) -> ASGIResponse:
    """One object."""
    server = server_of(request)
    with Call(server) as call:
        body = await read_body(request, GenerateRequest)
        prompt = await _prepare(call, server, body, stream=False)
        (output,) = await collect(request, call, server.tokenizer, [prompt], include_stop=True)
        reply = _reply(body, output, full_text_default=False)
        return json_reply(reply, reply_headers(server, call, [output]) | compute_time_header(call, output))


@post(
    "/generate_stream",
    status_code=200,
    opt={
        OPERATION: Operation(
            "Generate text, one event a token", _TAG, GenerateRequest, event=StreamResponse, errors=GENERATION_ERRORS
        )
    },
)
async def generate_stream(request: AnyRequest) -> ASGIResponse:
    """A stream."""
    server = server_of(request)
    with Call(server) as call:
        body = await read_body(request, GenerateRequest)
        return await _stream(call, server, body, full_text_default=False)


@post(
    "/",
    status_code=200,
    opt={
        OPERATION: Operation(
            "Generate text, plain or streamed",
            _TAG,
            CompatGenerateRequest,
            list[GenerateResponse],
            StreamResponse,
            errors=GENERATION_ERRORS,
        )
    },
)
async def compat_generate(request: AnyRequest) -> ASGIResponse:
    """A list of one object, or a stream. The prompt is part of the text unless the request says otherwise."""
    server = server_of(request)
    with Call(server) as call:
        body = await read_body(request, CompatGenerateRequest)
        if body.stream:
            return await _stream(call, server, body, full_text_default=True)
        prompt = await _prepare(call, server, body, stream=False)
        (output,) = await collect(request, call, server.tokenizer, [prompt], include_stop=True)
        reply = _reply(body, output, full_text_default=True)
        return json_reply([reply], reply_headers(server, call, [output]) | compute_time_header(call, output))


async def _prepare(call: Call, server: AppState, body: GenerateRequest, *, stream: bool) -> Prompt:
    options = validate_generate(body.inputs, body.parameters, server.limits, stream=stream)
    call.admit()
    return await call.prepare(body.inputs, options, add_special_tokens=True)


async def _stream(call: Call, server: AppState, body: GenerateRequest, *, full_text_default: bool) -> ASGIResponse:
    prompt = await _prepare(call, server, body, stream=True)
    buffer = EventBuffer()
    call.start(
        GenerateStream(
            prompt,
            server.tokenizer,
            buffer,
            details=body.parameters is not None and bool(body.parameters.details),
            full_text=_wants_full_text(body, full_text_default),
        )
    )
    return call.stream(buffer, stream_headers(server, [prompt]))


def _wants_full_text(body: GenerateRequest, default: bool) -> bool:
    wanted = body.parameters.return_full_text if body.parameters is not None else None
    return default if wanted is None else wanted


def _reply(body: GenerateRequest, output: Collected, *, full_text_default: bool) -> GenerateResponse:
    text = body.inputs + output.text if _wants_full_text(body, full_text_default) else output.text
    parameters = body.parameters
    if parameters is None or not (parameters.details or parameters.decoder_input_details):
        return GenerateResponse(text)
    tokens = [
        Token(token_id, token_text, float32_or_none(logprob), special)
        for token_id, token_text, logprob, special in zip(
            output.token_ids, output.texts, output.logprobs, output.specials, strict=True
        )
    ]
    details = Details(
        finish_reason=output.finish_reason.tgi,
        generated_tokens=output.generation.num_tokens,
        seed=output.prompt.options.seed,
        prefill=[],
        tokens=tokens,
    )
    return GenerateResponse(text, details)


HANDLERS = (compat_generate, generate, generate_stream)
