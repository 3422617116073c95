"""Bad bodies, wrong routes, engine trouble, bugs: every error is JSON in the form of its route's API."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.api import INFO, Api, error_message, make_state, open_api
from tgi_core.requests import TextTokenizer

ROUTES = [
    "/",
    "/generate",
    "/generate_stream",
    "/v1/chat/completions",
    "/v1/completions",
    "/tokenize",
    "/chat_tokenize",
]
VALID = b'{"inputs":"there","messages":[{"role":"user","content":"there"}],"prompt":"there"}'
CHAT = [{"role": "user", "content": "there"}]
SEVENS = b"7" * 5000


def post_raw(api: Api, path: str, content: bytes, content_type: str | None = "application/json") -> Any:
    """POST bytes."""
    headers = {} if content_type is None else {"content-type": content_type}
    return api.http.post(path, content=content, headers=headers)


def assert_error(reply: Any, status: int, error_type: str) -> str:
    """The reply is that error; returns its message."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert reply.json()["error_type"] == error_type
    assert "Traceback" not in reply.text
    assert "site-packages" not in reply.text
    return error_message(reply)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        VALID + b" x",
        b'{"inputs":NaN}',
        VALID.replace(b"there", b"\xff"),
        VALID.replace(b"there", b"\\ud800"),
        VALID[:-1] + b',"extra":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=["empty", "cut", "trailing", "nan", "not utf-8", "lone surrogate", "deep"],
)
def test_what_is_not_json_is_400(shared_api: Api, path: str, content: bytes) -> None:
    assert_error(post_raw(shared_api, path, content), 400, "validation")
    assert shared_api.state.permits.taken == 0


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("content", [b"[]", b"null", b"3", b"{}", b'"x"'])
def test_json_of_the_wrong_shape_is_422(shared_api: Api, path: str, content: bytes) -> None:
    assert_error(post_raw(shared_api, path, content), 422, "validation")


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b'{"inputs":3}', "$.inputs"),
        (b'{"inputs":"x","parameters":{"max_new_tokens":"3"}}', "$.parameters.max_new_tokens"),
        (b'{"inputs":"x","parameters":{"max_new_tokens":3.0}}', "$.parameters.max_new_tokens"),
        (b'{"inputs":"x","parameters":{"stop":[1]}}', "$.parameters.stop[0]"),
        (b'{"inputs":"x","parameters":{"details":1}}', "$.parameters.details"),
        (b'{"inputs":"x","parameters":{"seed":' + SEVENS + b"}}", "$.parameters.seed"),
        (b'{"inputs":"x","parameters":{"temperature":1e400}}', "$.parameters.temperature"),
        (b'{"inputs":"x","parameters":[]}', "$.parameters"),
    ],
)
def test_a_wrong_type_is_named_by_its_path(shared_api: Api, content: bytes, where: str) -> None:
    assert f"`{where}`" in assert_error(post_raw(shared_api, "/generate", content), 422, "validation")


@pytest.mark.parametrize(
    "content",
    [
        b'{"inputs":"x","inputs":"y"}',
        b'{"inputs":"a\\u0000b"}',
        b'{"inputs":"x","ignored":' + SEVENS + b"}",
        b'{"inputs":"x","parameters":{"temperature":' + b"1" * 30 + b"}}",
    ],
    ids=["repeated key", "NUL", "ignored huge integer", "huge temperature"],
)
def test_odd_bodies_that_are_served(api: Api, content: bytes) -> None:
    assert post_raw(api, "/generate", content).status_code == 200


@pytest.mark.parametrize("seed", ["-1", str(2**64), "7" * 50])
def test_a_seed_that_is_no_64_bit_number(shared_api: Api, seed: str) -> None:
    content = b'{"inputs":"x","parameters":{"seed":' + seed.encode() + b"}}"
    assert "`seed`" in assert_error(post_raw(shared_api, "/generate", content), 422, "validation")


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
def test_a_body_that_is_not_declared_json_is_415(shared_api: Api, path: str, content_type: str | None) -> None:
    assert_error(post_raw(shared_api, path, b'{"inputs":"x"}', content_type), 415, "validation")


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/x.y+json"]
)
def test_json_content_types(api: Api, content_type: str) -> None:
    assert post_raw(api, "/generate", b'{"inputs":"x"}', content_type).status_code == 200


def test_a_body_over_the_limit_is_413(tokenizer: TextTokenizer) -> None:
    with open_api(make_state(tokenizer, payload_limit=100)) as api:
        assert_error(post_raw(api, "/generate", json.dumps({"inputs": "x" * 100}).encode()), 413, "validation")
        assert post_raw(api, "/generate", b'{"inputs":"x"}'.ljust(100)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "error_type"),
    [
        ("GET", "/no/such/path", 404, "not_found"),
        ("POST", "/no/such/path", 404, "not_found"),
        ("GET", "/generate", 405, "method_not_allowed"),
        ("PUT", "/generate", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("GET", "/docs/secret.js", 404, "not_found"),
    ],
)
def test_wrong_routes_and_methods(shared_api: Api, method: str, path: str, status: int, error_type: str) -> None:
    reply = shared_api.http.request(method, path)
    message = assert_error(reply, status, error_type)
    assert message.endswith(f"{method} {path}")
    assert ("allow" in reply.headers) == (status == 405)


def test_limits_are_told_with_both_numbers(api: Api) -> None:
    message = assert_error(api.post("/generate", {"inputs": "word " * 300}), 422, "validation")
    given = len(api.post("/tokenize", {"inputs": "word " * 300}).json())
    assert message == (
        f"Input validation error: `inputs` must have less than 100 tokens. Given: {given}. Shorten "
        f"`inputs`, or start the server with --max-input-tokens {given} and --max-total-tokens {given + 1} or more"
    )
    body = {"inputs": "x", "parameters": {"max_new_tokens": 128}}
    message = assert_error(api.post("/generate", body), 422, "validation")
    assert "`inputs` tokens + `max_new_tokens` must be <= 128" in message


@pytest.mark.parametrize("path", ["/generate", "/"])
def test_an_engine_failure_is_424(api: Api, path: str) -> None:
    api.engine.fail_after = 1
    message = assert_error(api.post(path, {"inputs": "x"}), 424, "generation")
    assert message == "Request failed during generation: the device is on fire"
    assert api.metric('tgi_request_failure{err="generation"}') == 1


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_without_an_engine_503_with_retry_after(api: Api, path: str) -> None:
    api.engine.engine_down("it has died")
    reply = api.post(path, {"inputs": "x"})
    assert "it has died" in assert_error(reply, 503, "unavailable")
    assert int(reply.headers["retry-after"]) > 0
    assert api.state.permits.taken == 0


def test_a_bug_is_a_500_that_tells_nothing_and_is_logged(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(*_: object, **__: object) -> int:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(api.engine, "submit", explode)
    with caplog.at_level(logging.ERROR):
        reply = api.post("/generate", {"inputs": "x"})
    assert assert_error(reply, 500, "internal") == "Internal server error"
    assert "secret" in caplog.text
    assert "POST /generate" in caplog.text
    assert api.state.permits.taken == 0


LONG = "word " * 300


@pytest.mark.parametrize(
    ("path", "body", "param", "part"),
    [
        ("/v1/responses", {"input": "x", "max_output_tokens": -1}, "max_output_tokens", "`max_output_tokens` must be"),
        ("/v1/responses", {"input": LONG}, "input", "Shorten `input`"),
        (
            "/v1/responses",
            {"input": "x", "text": {"format": {"type": "odd"}}},
            "text.format.type",
            "`text.format.type`",
        ),
        (
            "/v1/responses",
            {"input": "x", "text": {"format": {"type": "json_schema", "schema": 3}}},
            "text.format.schema",
            "`text.format.schema` must be",
        ),
        ("/v1/messages", {"max_tokens": 1, "stop_sequences": [""]}, None, "`stop_sequences` must not"),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": LONG}]}, None, "`messages`"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages", "Shorten `messages`"),
        ("/v1/completions", {"prompt": LONG}, "prompt", "Shorten `prompt`"),
        ("/v1/completions", {"prompt": ["x"] * 99}, "prompt", "--max-client-batch-size"),
        ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix", "Suffix"),
    ],
)
def test_the_field_is_named_as_it_was_sent(
    shared_api: Api, path: str, body: dict[str, Any], param: str | None, part: str
) -> None:
    given = body if "messages" in body or path != "/v1/messages" else {"messages": CHAT, **body}
    reply = shared_api.post(path, given)
    assert reply.status_code == 422
    assert part in error_message(reply)
    assert reply.json()["error"].get("param") == param


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 10**6}),
        ("/v1/chat/completions", {"messages": CHAT, "max_completion_tokens": 10**6}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 10**6}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 10**6}),
        ("/v1/messages", {"messages": CHAT, "max_tokens": 10**6}),
        ("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 10**6}}),
    ],
)
def test_more_tokens_than_fit_are_cut_to_the_context(tokenizer: TextTokenizer, path: str, body: dict[str, Any]) -> None:
    info = replace(INFO, max_input_tokens=1999, max_total_tokens=2000)
    with open_api(make_state(tokenizer, info=info)) as api:
        api.engine.say(" fox")
        assert api.post(path, body).status_code == 200
        (submitted,) = api.engine.submitted
        assert submitted.max_new_tokens == 2000 - len(submitted.prompt)
    with open_api(make_state(tokenizer)) as api:
        # 128 tokens in all leave no room for 1,024.
        assert "must be <= 128" in error_message(api.post(path, body))
