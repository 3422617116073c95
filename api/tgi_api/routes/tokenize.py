"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

import asyncio

from litestar import post
from litestar.response.base import ASGIResponse

from tgi_api.body import read_body
from tgi_api.errors import AnyRequest
from tgi_api.openapi import OPERATION, TOKENIZER_ERRORS, Operation
from tgi_api.reply import json_reply
from tgi_api.schemas.generate import GenerateRequest
from tgi_api.schemas.tokenize import DetokenizeRequest, DetokenizeResponse
from tgi_api.state import server_of
from tgi_core.requests import TokenSpan, checks


@post(
    "/tokenize",
    status_code=200,
    opt={
        OPERATION: Operation(
            "Tokenize a text", "Tokenization", body=GenerateRequest, reply=list[TokenSpan], errors=TOKENIZER_ERRORS
        )
    },
)
async def tokenize(request: AnyRequest) -> ASGIResponse:
    """The tokens of ``inputs`` as /generate makes them, special tokens included."""
    server = server_of(request)
    body = await read_body(request, GenerateRequest)
    with server.tokenizations.hold():
        return json_reply(await server.tokenizer.encode_with_offsets(body.inputs, True))


@post(
    "/detokenize",
    status_code=200,
    opt={
        OPERATION: Operation(
            "Text of token ids",
            "Tokenization",
            body=DetokenizeRequest,
            reply=DetokenizeResponse,
            errors=TOKENIZER_ERRORS,
        )
    },
)
async def detokenize(request: AnyRequest) -> ASGIResponse:
    """The text of ``tokens``; special tokens are literal unless they are to be skipped."""
    server = server_of(request)
    body = await read_body(request, DetokenizeRequest)
    limits = server.limits
    ids = checks.token_ids("tokens", body.tokens, limits, limits.max_total_tokens)
    with server.tokenizations.hold():
        text = await asyncio.to_thread(server.tokenizer.decode, ids, bool(body.skip_special_tokens))
        return json_reply(DetokenizeResponse(text))


HANDLERS = (tokenize, detokenize)
