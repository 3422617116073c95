"""docs/api.md names every route, field and kind of error that there is, docs/metrics.md every metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

import tgi_api.errors
from tests.support.api import Api
from tgi_api.schemas.chat import ChatRequest
from tgi_api.schemas.completions import CompletionRequest
from tgi_api.schemas.generate import CompatGenerateRequest, GenerateParameters
from tgi_api.schemas.messages import MessagesRequest
from tgi_api.schemas.responses import ResponsesRequest
from tgi_core import errors

DOCS = Path(__file__).parents[2] / "docs"
BODIES = [
    CompatGenerateRequest,
    GenerateParameters,
    ChatRequest,
    CompletionRequest,
    ResponsesRequest,
    MessagesRequest,
]
PAGE = (DOCS / "api.md").read_text()


def error_types(module: Any) -> set[str]:
    classes = [
        kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, errors.RequestError)
    ]
    return {kind.error_type for kind in classes}


def test_every_route(api: Api) -> None:
    paths = api.http.get("/api-doc/openapi.json").json()["paths"]
    missing = [
        f"{method.upper()} {path}"
        for path, methods in paths.items()
        for method in methods
        if method != "head" and f"`{method.upper()} {path}`" not in PAGE
    ]
    assert missing == []
    assert len(paths) > 8


@pytest.mark.parametrize("kind", BODIES)
def test_every_field_of_a_body(kind: type[msgspec.Struct]) -> None:
    fields = kind.__struct_encode_fields__
    assert [name for name in fields if f"`{name}`" not in PAGE] == []
    assert len(fields) > 2


def test_every_metric_with_its_type(api: Api) -> None:
    page = (DOCS / "metrics.md").read_text()
    families = list(text_string_to_metric_families(api.http.get("/metrics").text))
    assert [family.name for family in families if f"| `{family.name}` | {family.type} |" not in page] == []
    assert len(families) == page.count("\n| `tgi_")


def test_every_kind_of_error() -> None:
    kinds = error_types(errors) | error_types(tgi_api.errors)
    internal = {"internal", "dropped"}
    assert sorted(kind for kind in kinds - internal if f"`{kind}`" not in PAGE) == []
    assert len(kinds) > 6
