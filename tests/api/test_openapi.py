"""The OpenAPI document is complete."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from tests.support.api import Api
from tgi_api.app import HANDLERS
from tgi_api.openapi import OPERATION, Operation
from tgi_api.schemas.chat import ChatRequest
from tgi_api.schemas.completions import CompletionRequest
from tgi_api.schemas.generate import CompatGenerateRequest, GenerateParameters
from tgi_api.schemas.messages import MessagesRequest
from tgi_api.schemas.responses import ResponsesRequest

BODIES = [
    CompatGenerateRequest,
    GenerateParameters,
    ChatRequest,
    CompletionRequest,
    ResponsesRequest,
    MessagesRequest,
]
EXPECTED = {
    ("post", "/"),
    ("post", "/generate"),
    ("post", "/generate_stream"),
    ("post", "/v1/chat/completions"),
    ("post", "/v1/completions"),
    ("post", "/invocations"),
    ("post", "/vertex"),
    ("post", "/v1/embeddings"),
    ("post", "/v1/responses"),
    ("get", "/v1/responses/{response_id}"),
    ("delete", "/v1/responses/{response_id}"),
    ("post", "/v1/messages"),
    ("post", "/v1/messages/count_tokens"),
    ("post", "/v1/requests/{request_id}/cancel"),
    ("get", "/v1/models/{model}"),
    ("post", "/tokenize"),
    ("post", "/detokenize"),
    ("post", "/chat_tokenize"),
    ("get", "/"),
    ("get", "/health"),
    ("get", "/health/live"),
    ("get", "/health/ready"),
    ("get", "/ping"),
    ("get", "/info"),
    ("get", "/v1/models"),
    ("get", "/metrics"),
}
UNDOCUMENTED = {"/docs", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/docs/favicon-32x32.png"}


@pytest.fixture
def document(api: Api) -> Any:
    """The document as served."""
    reply = api.http.get("/api-doc/openapi.json")
    assert reply.headers["content-type"] == "application/json"
    return reply.json()


def test_every_route_is_there(api: Api, document: Any) -> None:
    found = {(method, path) for path, methods in document["paths"].items() for method in methods if method != "head"}
    assert found == EXPECTED
    registered = {re.sub(r":\w+\}", "}", route.path_format) for route in api.http.app.routes}
    assert registered - set(document["paths"]) == UNDOCUMENTED | {"/api-doc/openapi.json"}


def test_every_reference_leads_somewhere(document: Any) -> None:
    names = set(re.findall(r"#/components/schemas/(\w+)", msgspec.json.encode(document).decode()))
    assert names == set(document["components"]["schemas"])


@pytest.mark.parametrize("kind", BODIES)
def test_every_field_of_a_body_is_there(document: Any, kind: type[msgspec.Struct]) -> None:
    assert set(document["components"]["schemas"][kind.__name__]["properties"]) == set(kind.__struct_fields__)


def test_every_struct_of_the_routes_is_there_with_all_its_fields(document: Any) -> None:
    schemas = document["components"]["schemas"]
    for handler in HANDLERS:
        operation: Operation = handler.opt[OPERATION]
        for kind in operation_types(operation):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                assert set(kind.__struct_encode_fields__) <= set(schemas[kind.__name__]["properties"])


def operation_types(operation: Operation) -> list[Any]:
    """The types of bodies, replies and events."""
    kinds: list[Any] = []
    for kind in (operation.body, operation.reply, operation.event):
        kinds += kind if isinstance(kind, tuple) else [kind]
    return kinds


def test_bounds_of_zero_are_kept(document: Any) -> None:
    parameters = document["components"]["schemas"]["GenerateParameters"]["properties"]
    assert parameters["temperature"]["exclusiveMinimum"] == 0
    assert parameters["seed"]["minimum"] == 0
    assert parameters["seed"]["maximum"] == 2**64 - 1
    assert parameters["temperature"]["description"]


def test_streams_and_errors_are_described(document: Any) -> None:
    forms = {
        "/": "ErrorResponse",
        "/generate_stream": "ErrorResponse",
        "/invocations": "ErrorResponse",
        "/v1/chat/completions": "OpenAIError",
        "/v1/completions": "OpenAIError",
        "/v1/responses": "OpenAIError",
        "/v1/messages": "AnthropicError",
    }
    for path, schema in forms.items():
        responses = document["paths"][path]["post"]["responses"]
        assert "text/event-stream" in responses["200"]["content"]
        assert {"400", "401", "413", "415", "422", "424", "429", "499", "500", "503"} <= set(responses)
        assert responses["422"]["content"]["application/json"]["schema"]["$ref"].endswith(f"/{schema}")


def test_the_key_is_asked_for_on_protected_routes_only(document: Any) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            is_protected = method in ("post", "delete") or path.startswith("/v1/responses")
            assert ("security" in operation) == (is_protected and path != "/chat_tokenize")


def test_operation_ids_are_unique(document: Any) -> None:
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    assert "post_v1_chat_completions" in ids
