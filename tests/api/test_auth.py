"""The API key, and CORS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api import Api, make_state, open_api
from tgi_core.requests import TextTokenizer

PROTECTED = ["/", "/generate", "/generate_stream", "/v1/chat/completions", "/v1/completions", "/tokenize"]
NEWER_PROTECTED = ["/invocations", "/vertex", "/detokenize", "/v1/responses", "/v1/messages", "/v1/requests/x/cancel"]
PUBLIC = [
    "/",
    "/health",
    "/health/live",
    "/health/ready",
    "/ping",
    "/info",
    "/v1/models",
    "/metrics",
    "/docs",
    "/api-doc/openapi.json",
]
BODY = {"inputs": "x", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}


@pytest.fixture
def locked(tokenizer: TextTokenizer) -> Iterator[Api]:
    """A server with an API key."""
    with open_api(make_state(tokenizer, api_key="Sésame")) as api:
        yield api


@pytest.mark.parametrize("path", PROTECTED)
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer wrong", "Bearer sésame", "Bearer Sésame2", "Basic Sésame", "Sésame"],
)
def test_without_the_key_401(locked: Api, path: str, authorization: str | None) -> None:
    headers: Any = {} if authorization is None else {"authorization": authorization.encode()}
    reply = locked.http.post(path, json=BODY, headers=headers)
    assert reply.status_code == 401
    assert reply.json()["error_type"] == "authentication"
    assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", NEWER_PROTECTED)
def test_newer_routes_that_generate_or_know_the_tokenizer_want_the_key_too(locked: Api, path: str) -> None:
    assert locked.http.post(path, json=BODY).status_code == 401


def test_the_key_is_asked_for_before_the_body_is_read(locked: Api) -> None:
    assert locked.http.post("/generate", content=b"{").status_code == 401


@pytest.mark.parametrize("path", PROTECTED)
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_with_the_key(locked: Api, path: str, scheme: str) -> None:
    headers: Any = {"authorization": f"{scheme} Sésame".encode()}
    assert locked.http.post(path, json=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize("path", PUBLIC)
def test_public_routes_need_no_key(locked: Api, path: str) -> None:
    assert locked.http.get(path).status_code == 200


def test_chat_tokenize_is_public_as_in_tgi(locked: Api) -> None:
    assert locked.http.post("/chat_tokenize", json=BODY).status_code == 200


def test_x_api_key_is_for_anthropics_routes_alone(locked: Api) -> None:
    headers: Any = {"x-api-key": "Sésame".encode()}
    assert locked.http.post("/v1/chat/completions", json=BODY, headers=headers).status_code == 401
    assert locked.http.post("/v1/messages", json=BODY, headers={"x-api-key": "wrong"}).status_code == 401
    reply = locked.http.post("/v1/messages", json=BODY | {"model": "m", "max_tokens": 3}, headers=headers)
    assert reply.status_code == 200


def test_a_key_is_ignored_when_none_is_set(api: Api) -> None:
    assert api.post("/generate", BODY, authorization="Bearer not-used").status_code == 200


@pytest.mark.parametrize("path", [*PROTECTED, "/info"])
def test_a_preflight_passes_without_the_key(locked: Api, path: str) -> None:
    headers = {
        "origin": "https://app.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-stainless-lang",
    }
    reply = locked.http.options(path, headers=headers)
    assert reply.status_code == 204
    assert reply.headers["access-control-allow-origin"] == "*"
    allowed = reply.headers["access-control-allow-headers"].lower()
    assert "authorization" in allowed
    assert "content-type" in allowed
    assert "POST" in reply.headers["access-control-allow-methods"]


def test_any_origin_by_default_also_on_errors_and_streams(api: Api) -> None:
    for path, body in (("/generate", BODY), ("/generate", {}), ("/generate_stream", BODY)):
        reply = api.post(path, body, origin="https://app.example")
        assert reply.headers["access-control-allow-origin"] == "*"


def test_only_listed_origins(tokenizer: TextTokenizer) -> None:
    with open_api(make_state(tokenizer, cors_allow_origin=("https://good.example",))) as api:
        good = api.post("/generate", BODY, origin="https://good.example")
        bad = api.post("/generate", BODY, origin="https://bad.example")
    assert good.headers["access-control-allow-origin"] == "https://good.example"
    assert "access-control-allow-origin" not in bad.headers
