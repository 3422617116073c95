"""TGI's own routes: ``/``, ``/generate`` and ``/generate_stream``."""

from __future__ import annotations

from litestar import post
from litestar.response.base import ASGIResponse

from tgi_api.body import read_body
from tgi_api.call import Call
from tgi_api.collect import Collected, collect, most_likely
from tgi_api.errors import AnyRequest
from tgi_api.headers import compute_time_header, reply_headers, stream_headers
from tgi_api.logprobs import prefill_tokens, top_tokens
from tgi_api.numbers import float32_or_none
from tgi_api.openapi import GENERATION_ERRORS, OPERATION, Operation
from tgi_api.output import Prompt
from tgi_api.reply import json_reply
from tgi_api.schemas.generate import (
    BestOfSequence,
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
    with Call(server, request) as call:
        body = await read_body(request, GenerateRequest)
        reply, headers = await _generate(request, call, server, body, full_text_default=False)
        return json_reply(reply, headers)


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
    with Call(server, request) as call:
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
    """A list of one object, or a stream.

    The prompt is part of the text unless the request says otherwise, or the model has an encoder.
    """
    server = server_of(request)
    with Call(server, request) as call:
        body = await read_body(request, CompatGenerateRequest)
        return await answer_compat(request, call, server, body)


async def answer_compat(request: AnyRequest, call: Call, server: AppState, body: CompatGenerateRequest) -> ASGIResponse:
    """The reply of ``/``, or its stream."""
    # As in TGI, whose default follows what the model is for: what an encoder has read is not continued.
    continues = not server.info.decoder_prompt
    if body.stream:
        return await _stream(call, server, body, full_text_default=continues)
    reply, headers = await _generate(request, call, server, body, full_text_default=continues)
    return json_reply([reply], headers)


async def prepare_generate(call: Call, server: AppState, body: GenerateRequest, *, stream: bool) -> Prompt:
    """Check the request, admit it and tokenize its text."""
    options = validate_generate(body.inputs, body.parameters, server.limits, stream=stream)
    call.admit(options.best_of)
    (prompt,) = await call.prepare([body.inputs], options, add_special_tokens=True)
    return prompt


async def _generate(
    request: AnyRequest, call: Call, server: AppState, body: GenerateRequest, *, full_text_default: bool
) -> tuple[GenerateResponse, dict[str, str]]:
    """The reply and its headers, which are those of the most likely sequence."""
    prompt = await prepare_generate(call, server, body, stream=False)
    (outputs,) = await collect(request, call, server.tokenizer, [prompt])
    best, *others = most_likely(outputs)
    headers = reply_headers(server, call, [prompt], [best]) | compute_time_header(call, [best])
    prefix = body.inputs if _wants_full_text(body, full_text_default) else ""
    parameters = body.parameters
    if parameters is None or not (parameters.details or parameters.decoder_input_details):
        return GenerateResponse(prefix + best.text), headers
    details = Details(
        finish_reason=best.finish_reason.tgi,
        generated_tokens=best.generation.num_tokens,
        seed=best.prompt.options.seed,
        prefill=prefill_tokens(best),
        tokens=_tokens(best),
        best_of_sequences=[_sequence(other, prefix) for other in others] or None,
        top_tokens=_top_tokens(best),
    )
    return GenerateResponse(prefix + best.text, details), headers


async def _stream(call: Call, server: AppState, body: GenerateRequest, *, full_text_default: bool) -> ASGIResponse:
    prompt = await prepare_generate(call, server, body, stream=True)
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


def _sequence(output: Collected, prefix: str) -> BestOfSequence:
    return BestOfSequence(
        generated_text=prefix + output.text,
        finish_reason=output.finish_reason.tgi,
        generated_tokens=output.generation.num_tokens,
        seed=output.prompt.options.seed,
        prefill=prefill_tokens(output),
        tokens=_tokens(output),
        top_tokens=_top_tokens(output),
    )


def _tokens(output: Collected) -> list[Token]:
    columns = zip(output.token_ids, output.texts, output.logprobs, output.specials, strict=True)
    return [Token(token_id, text, float32_or_none(logprob), special) for token_id, text, logprob, special in columns]


def _top_tokens(output: Collected) -> list[list[Token]] | None:
    columns = zip(output.token_ids, output.texts, output.alternatives, strict=True)
    tops = [
        top_tokens(output, token_id, text, alternatives)
        for token_id, text, alternatives in columns
        if alternatives is not None
    ]
    return tops or None


HANDLERS = (compat_generate, generate, generate_stream)
