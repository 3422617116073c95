"""Requests made from the OpenAPI document: no failure of the server, no reply that the document does not describe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.api import Api, make_state, open_api
from tgi_api.app import HANDLERS
from tgi_api.openapi import build_document
from tgi_core.requests import TextTokenizer

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
DOCUMENT = msgspec.json.decode(build_document(HANDLERS, "1"))


def operations(document: Any) -> list[Any]:
    """What the document says can be asked for."""
    return [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]


OPERATIONS = operations(DOCUMENT)
CASES = [
    pytest.param(operation, mode, id=f"{operation.label}-{mode.value}")
    for operation in OPERATIONS
    for mode in GenerationMode
    # Without a body nothing can be wrong.
    if operation.body or mode is GenerationMode.POSITIVE
]


@pytest.fixture(scope="module")
def served(tokenizer: TextTokenizer) -> Iterator[Api]:
    """A server that answers everything."""
    with open_api(make_state(tokenizer)) as api:
        api.engine.say(" fox jumps")
        yield api


@pytest.mark.parametrize(("operation", "mode"), CASES)
def test_a_sample_of_requests(operation: Any, mode: GenerationMode, served: Api) -> None:
    run(operation, mode, served, max_examples=3, derandomize=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("operation", "mode"), CASES)
def test_many_requests(operation: Any, mode: GenerationMode, served: Api) -> None:
    run(operation, mode, served, max_examples=200)


def test_every_operation_is_asked_for() -> None:
    described = {f"{method.upper()} {path}" for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert {operation.label for operation in OPERATIONS} == described


def test_what_the_document_lacks_is_found(served: Api) -> None:
    document = msgspec.json.decode(build_document(HANDLERS, "1"))
    del document["paths"]["/v1/embeddings"]["post"]["responses"]["422"]
    (operation,) = [operation for operation in operations(document) if operation.path == "/v1/embeddings"]
    with pytest.raises(FailureGroup, match="Undocumented status code"):
        check(operation.Case(), served)


def run(operation: Any, mode: GenerationMode, api: Api, **options: Any) -> None:
    """Send requests that fit the document, or that do not, and check the replies."""

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        **options,
    )
    def send(case: Any) -> None:
        check(case, api)

    send()


def check(case: Any, api: Api) -> None:
    """Send one request and check the reply."""
    given_by_case = case.as_transport_kwargs(base_url="http://testserver.local")
    request = {"content" if name == "data" else name: value for name, value in given_by_case.items() if value}
    reply = api.http.request(**request)
    # The document describes the data of a stream's events, the check looks at the events' frames.
    is_stream = reply.headers["content-type"] == "text/event-stream"
    case.validate_response(reply, checks=CHECKS, excluded_checks=[response_schema_conformance] if is_stream else None)
