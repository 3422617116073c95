"""The OpenAPI document, built from the route handlers and from msgspec's own JSON Schemas.

litestar's generator loses bounds that are 0 and cannot see a body that the handler decodes, so it is switched off.
Every handler carries an ``Operation`` under ``OPERATION`` in its ``opt``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from tgi_api.error_replies import error_form
from tgi_api.schemas.error import AnthropicError, ErrorResponse, OpenAIError

OPERATION = "operation"

_ERROR_TEXTS = {
    400: "The body is not JSON",
    401: "The API key is missing or wrong",
    404: "There is no such thing",
    413: "The body is too large",
    415: "The content type is not JSON",
    422: "The request is not valid",
    424: "The engine failed while it generated",
    429: "The concurrency limit is reached",
    499: "The request was cancelled",
    500: "Internal error",
    503: "The model is not available",
}
BODY_ERRORS = (400, 413, 415, 422)
TOKENIZER_ERRORS = (*BODY_ERRORS, 429, 503)
GENERATION_ERRORS = (*BODY_ERRORS, 424, 429, 499, 500, 503)


class Operation(msgspec.Struct, frozen=True):
    """What the document says about a route.

    Attributes:
        summary: one line.
        tag: its group.
        body: type of the JSON body; a tuple of types is one of them.
        reply: type of the JSON reply, or a tuple.
        event: type of one event's data, for a route that streams, or a tuple.
        text: description of a reply that is not JSON.
        errors: statuses of the error replies.
        has_tgi_errors: its errors have TGI's form wherever its path is.
        is_protected: whether it asks for the API key, when the server has one.
    """

    summary: str
    tag: str
    body: Any = None
    reply: Any = None
    event: Any = None
    text: str = ""
    errors: tuple[int, ...] = ()
    has_tgi_errors: bool = False
    is_protected: bool = True


def build_document(handlers: Sequence[HTTPRouteHandler], version: str) -> bytes:
    """The document of ``handlers`` as JSON."""
    operations: list[Operation] = [handler.opt[OPERATION] for handler in handlers]
    types = list(dict.fromkeys((*_types(operations), ErrorResponse, OpenAIError, AnthropicError)))
    refs, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(types, refs, strict=True))

    paths: dict[str, dict[str, Any]] = {}
    for handler, operation in zip(handlers, operations, strict=True):
        for path in sorted(handler.paths):
            for method in sorted(handler.http_methods):
                place = re.sub(r"\{(\w+):\w+\}", r"{\1}", path)
                name = "_".join(re.findall(r"\w+", f"{method.lower()} {place}"))
                paths.setdefault(place, {})[method.lower()] = {
                    "operationId": name,
                    **_describe(place, operation, schemas),
                }
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "tgi-serve",
                "description": "Text Generation Inference's HTTP API and OpenAI's.",
                "license": {"name": "Apache 2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
                "version": version,
            },
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"api_key": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def document_route(document: bytes) -> HTTPRouteHandler:
    """The handler that serves the document."""

    @get("/api-doc/openapi.json", sync_to_thread=False)
    def openapi_document() -> ASGIResponse:
        return ASGIResponse(body=document, media_type="application/json")

    return openapi_document


def _types(operations: Sequence[Operation]) -> Iterator[Any]:
    for operation in operations:
        for kind in (operation.body, operation.reply, operation.event):
            yield from kind if isinstance(kind, tuple) else (kind,) if kind else ()


def _schema(kind: Any, schemas: dict[Any, Any]) -> Any:
    return {"anyOf": [schemas[one] for one in kind]} if isinstance(kind, tuple) else schemas[kind]


def _describe(path: str, operation: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.reply:
        content["application/json"] = {"schema": _schema(operation.reply, schemas)}
    if operation.event:
        content["text/event-stream"] = {"schema": _schema(operation.event, schemas)}
    ok: dict[str, Any] = {"description": operation.text or "Success"}
    if content:
        ok["content"] = content
    responses: dict[str, Any] = {"200": ok}
    form = error_form("/" if operation.has_tgi_errors else path)
    for status in (*operation.errors, *((401,) if operation.is_protected else ())):
        responses[str(status)] = {
            "description": _ERROR_TEXTS[status],
            "content": {"application/json": {"schema": schemas[form.schema]}},
        }
    entry: dict[str, Any] = {"summary": operation.summary, "tags": [operation.tag], "responses": responses}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    if parameters:
        entry["parameters"] = parameters
    if operation.body:
        entry["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _schema(operation.body, schemas)}},
        }
    if operation.is_protected:
        # The empty alternative: a server without a key asks for none.
        entry["security"] = [{"api_key": []}, {}]
    return entry
