"""``/tokenize``."""

from __future__ import annotations

from litestar import post
from litestar.response.base import ASGIResponse

from tgi_api.body import read_body
from tgi_api.errors import AnyRequest
from tgi_api.openapi import BODY_ERRORS, OPERATION, Operation
from tgi_api.reply import json_reply
from tgi_api.schemas.generate import GenerateRequest
from tgi_api.state import server_of
from tgi_core.requests import TokenSpan


@post(
    "/tokenize",
    status_code=200,
    opt={
        OPERATION: Operation(
            "Tokenize a text", "Tokenization", body=GenerateRequest, reply=list[TokenSpan], errors=BODY_ERRORS
        )
    },
)
async def tokenize(request: AnyRequest) -> ASGIResponse:
    """The tokens of ``inputs`` as /generate makes them, special tokens included."""
    server = server_of(request)
    body = await read_body(request, GenerateRequest)
    with server.permits.hold():
        return json_reply(await server.tokenizer.encode_with_offsets(body.inputs, True))


HANDLERS = (tokenize,)
