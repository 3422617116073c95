"""Golden wire tests: the bytes and headers that clients depend on, route by route, from the specification."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.api import Api, make_state, open_api
from tgi_core.requests import TextTokenizer

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TOP_N = ". To allow it, start the server with --max-top-n-tokens 6 or more"
ROUTES: dict[str, dict[str, Any]] = {
    "/": {"inputs": "hi"},
    "/generate": {"inputs": "hi"},
    "/invocations": {"inputs": "hi"},
    "/vertex": {"instances": [{"inputs": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {**CHAT, "max_tokens": 9},
}
STREAMS = {path: {**body, "stream": True} for path, body in ROUTES.items() if path not in ("/generate", "/vertex")}
STREAMS["/generate_stream"] = {"inputs": "hi"}

OVERLOADED = (
    "Model is overloaded: 1 of at most 1 generations (--max-concurrent-requests) are running, and the request needs 1 "
    "more"
)
FIRE = "Request failed during generation: the device is on fire"


def expected_error(
    path: str, status: int, message: str, error_type: str, *, param: str | None, code: str | None
) -> Any:
    """The body of an error in the form of its route, without the random id in Anthropic's."""
    if path == "/v1/messages":
        kinds = {401: "authentication_error", 413: "request_too_large", 429: "rate_limit_error", 424: "api_error"}
        kind = {**kinds, 503: "overloaded_error"}.get(status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}, "error_type": error_type}
    if path.startswith("/v1/"):
        kind = {424: "server_error", 503: "server_error", 429: "rate_limit_error"}.get(status, "invalid_request_error")
        return {
            "error": {"message": message, "type": kind, "param": param, "code": code},
            "error_type": error_type,
        }
    return {"error": message, "error_type": error_type}


def assert_error(
    reply: Any, status: int, message: str, error_type: str, *, param: str | None = None, code: str | None = None
) -> None:
    """The reply is this error, and JSON."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    path = reply.request.url.path
    if path == "/v1/messages":
        assert body.pop("request_id") == reply.headers["x-request-id"]
    assert body == expected_error(path, status, message, error_type, param=param, code=code)
    assert ("retry-after" in reply.headers) == (status in (429, 503))
    assert not [name for name in reply.headers if name.startswith("x-") and name != "x-request-id"]


@pytest.mark.parametrize("path", ROUTES)
def test_plain_headers(api: Api, path: str) -> None:
    reply = api.post(path, ROUTES[path])
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    counts = {name: value for name, value in reply.headers.items() if name.startswith("x-") and name != "x-request-id"}
    if path == "/vertex":
        assert counts == {}
        return
    milliseconds = {"x-total-time", "x-validation-time", "x-queue-time", "x-inference-time", "x-time-per-token"}
    expected = {"x-compute-type", "x-compute-characters", "x-prompt-tokens", "x-generated-tokens", *milliseconds}
    assert set(counts) == expected | ({"x-compute-time"} if path != "/v1/completions" else set())
    assert all(re.fullmatch(r"\d+", counts[name]) for name in expected - {"x-compute-type"})
    assert counts["x-generated-tokens"] == "3"
    assert re.fullmatch(r"\d+\.\d+", counts.get("x-compute-time", "0.0"))


@pytest.mark.parametrize("path", STREAMS)
def test_stream_headers_and_framing(api: Api, path: str) -> None:
    reply = api.post(path, STREAMS[path])
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert {"x-compute-type", "x-compute-characters"} <= set(reply.headers)
    assert "content-length" not in reply.headers
    named = path in ("/v1/responses", "/v1/messages")
    frame = r"event: [a-z_.]+\ndata: \{.*\}" if named else r"data: (\{.*\}|\[DONE\])"
    *blocks, rest = reply.text.split("\n\n")
    assert rest == ""
    assert [block for block in blocks if not re.fullmatch(frame, block)] == []
    is_openai = path in ("/v1/completions", "/v1/chat/completions")
    assert [block == "data: [DONE]" for block in blocks] == [False] * (len(blocks) - 1) + [is_openai]


@pytest.mark.parametrize("path", ROUTES)
def test_bodies_that_are_refused(tokenizer: TextTokenizer, path: str) -> None:
    with open_api(make_state(tokenizer, payload_limit=200)) as api:
        reply = api.http.post(path, content=b"{", headers={"content-type": "application/json"})
        message = "Failed to parse the request body as JSON: Input data was truncated"
        assert_error(reply, 400, message, "validation")
        reply = api.http.post(path, content=b"{}", headers={"content-type": "text/plain"})
        message = "Expected a request with `Content-Type: application/json`. Given: `text/plain`"
        assert_error(reply, 415, message, "validation")
        reply = api.post(path, {"x": "y" * 300})
        assert_error(reply, 413, "The body is larger than --payload-limit allows, which is 200 bytes", "validation")
        reply = api.post(path, [])
        assert_error(reply, 422, "Failed to deserialize the JSON body: Expected `object`, got `array`", "validation")


@pytest.mark.parametrize("path", [*ROUTES, "/generate_stream"])
def test_wrong_methods(shared_api: Api, path: str) -> None:
    reply = shared_api.http.put(path, json={})
    message = f"This route does not take the method: PUT {path}"
    assert_error(reply, 405, message, "method_not_allowed", code="method_not_allowed")


@pytest.mark.parametrize("path", ROUTES)
def test_a_missing_key(tokenizer: TextTokenizer, path: str) -> None:
    with open_api(make_state(tokenizer, api_key="k")) as api:
        reply = api.post(path, ROUTES[path])
        message = "The API key is missing or wrong; send `Authorization: Bearer <key>`"
        assert_error(reply, 401, message, "authentication", code="invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("stream", [False, True])
def test_overload_and_a_lost_engine(tokenizer: TextTokenizer, path: str, stream: bool) -> None:
    body = STREAMS[path] if stream or path == "/generate_stream" else ROUTES[path]
    with open_api(make_state(tokenizer, max_concurrent_requests=1)) as api:
        with api.state.permits.hold():
            reply = api.post(path, body)
            assert_error(reply, 429, OVERLOADED, "overloaded", code="rate_limit_exceeded")
        api.engine.engine_down("it has died")
        assert_error(api.post(path, body), 503, "The model is not available: it has died", "unavailable")
        assert api.state.permits.taken == 0


@pytest.mark.parametrize(
    ("path", "body", "message", "param", "code"),
    [
        ("/generate", {"temperature": 0}, "`temperature` must be strictly positive. Given: 0.0", None, None),
        ("/generate", {"top_n_tokens": 6}, "`top_n_tokens` must be >= 0 and <= 5. Given: 6" + TOP_N, None, None),
        ("/v1/completions", {"seed": -1}, f"`seed` must be >= 0 and <= {2**64 - 1}. Given: -1", "seed", None),
        (
            "/v1/chat/completions",
            {"max_tokens": 128},
            "`inputs` tokens + `max_new_tokens` must be <= 128. Given: 17 `inputs` tokens and 128 `max_new_tokens`. "
            "Shorten `messages`, ask for fewer tokens, or start the server with --max-total-tokens 145 or more",
            "messages",
            "context_length_exceeded",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_validation_comes_before_the_stream(
    shared_api: Api,
    path: str,
    body: dict[str, Any],
    *,
    message: str,
    param: str | None,
    code: str | None,
    stream: bool,
) -> None:
    given = {**ROUTES[path], **(body if path.startswith("/v1") else {"parameters": body})}
    if stream:
        path, given = ("/generate_stream", given) if path == "/generate" else (path, {**given, "stream": True})
    reply = shared_api.post(path, given)
    assert_error(reply, 422, f"Input validation error: {message}", "validation", param=param, code=code)


@pytest.mark.parametrize("path", ROUTES)
def test_an_engine_failure(api: Api, path: str) -> None:
    api.engine.fail_after = 1
    assert_error(api.post(path, ROUTES[path]), 424, FIRE, "generation")


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/", f'data: {{"error":"{FIRE}","error_type":"generation"}}\n\n'),
        ("/generate_stream", f'data: {{"error":"{FIRE}","error_type":"generation"}}\n\n'),
        (
            "/v1/completions",
            f'data: {{"error":{{"message":"{FIRE}","type":"server_error","param":null,"code":null,'
            '"http_status_code":424},"error_type":"generation"}\n\ndata: [DONE]\n\n',
        ),
        (
            "/v1/chat/completions",
            f'data: {{"error":{{"message":"{FIRE}","type":"server_error","param":null,"code":null,'
            '"http_status_code":424},"error_type":"generation"}\n\ndata: [DONE]\n\n',
        ),
        (
            "/v1/messages",
            f'event: error\ndata: {{"type":"error","error":{{"type":"api_error","message":"{FIRE}"}},'
            '"error_type":"generation","request_id":"mine"}\n\n',
        ),
    ],
)
def test_a_failure_after_the_first_token_is_an_event(api: Api, path: str, end: str) -> None:
    api.engine.fail_after = 1
    reply = api.post(path, STREAMS[path], x_request_id="mine")
    assert reply.status_code == 200
    assert " fox" in reply.text
    assert reply.text.endswith("\n\n" + end)


@pytest.mark.parametrize(
    ("body", "tgi", "openai"),
    [
        ({}, "eos_token", "stop"),
        ({"stop": [" jum"]}, "stop_sequence", "stop"),
        ({"max": 1}, "length", "length"),
    ],
)
def test_finish_reasons(api: Api, body: dict[str, Any], tgi: str, openai: str) -> None:
    limit = body.get("max")
    rest = {name: value for name, value in body.items() if name != "max"}
    parameters = {**rest, "details": True, "max_new_tokens": limit}
    assert api.post("/generate", {"inputs": "x", "parameters": parameters}).json()["details"]["finish_reason"] == tgi
    text = api.post("/generate_stream", {"inputs": "x", "parameters": parameters}).text
    assert text.count(f'"finish_reason":"{tgi}"') == 1
    for path in ("/v1/completions", "/v1/chat/completions"):
        given = {**ROUTES[path], **rest, "max_tokens": limit}
        assert api.post(path, given).json()["choices"][0]["finish_reason"] == openai
        text = api.post(path, {**given, "stream": True}).text
        assert text.count(f'"finish_reason":"{openai}"') == 1
