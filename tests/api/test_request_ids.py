"""The ids of requests, and cancelling by them."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.api import Api, LiveServer, error_message, events, make_state, read_until, wait_until
from tgi_core.requests import TextTokenizer

PROMPTS: dict[str, dict[str, Any]] = {
    "/generate": {"inputs": "hi"},
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
}


@pytest.mark.parametrize("path", [*PROMPTS, "/info", "/no/such/route"])
def test_every_reply_has_the_requests_id(api: Api, path: str) -> None:
    for headers, expected in (({}, r"[0-9a-f]{32}"), ({"x_request_id": "my-Id_1.~"}, r"my-Id_1\.~")):
        body = PROMPTS.get(path)
        reply = api.http.get(path, headers={"x-request-id": "my-Id_1.~"} if headers else {})
        if body is not None:
            reply = api.post(path, body, **headers)
            assert reply.status_code == 200
        assert re.fullmatch(expected, reply.headers["x-request-id"])
        assert reply.headers.get_list("x-request-id") == [reply.headers["x-request-id"]]


@pytest.mark.parametrize("odd", ["", " ", "a b", 'a"b', "x" * 129, "é"])
def test_a_header_that_is_no_id_counts_as_none(api: Api, odd: str) -> None:
    reply = api.http.get("/info", headers={"x-request-id": odd.encode("latin-1")})
    assert re.fullmatch(r"[0-9a-f]{32}", reply.headers["x-request-id"])


@pytest.mark.parametrize(
    ("path", "prefix"),
    [
        ("/v1/completions", "cmpl-"),
        ("/v1/chat/completions", "chatcmpl-"),
        ("/v1/responses", "resp_"),
        ("/v1/messages", "msg_"),
    ],
)
def test_the_replys_id_is_the_requests(api: Api, path: str, prefix: str) -> None:
    reply = api.post(path, PROMPTS[path], x_request_id="mine")
    assert reply.json()["id"] == f"{prefix}mine"


def test_the_bodys_id_wins(api: Api) -> None:
    reply = api.post("/v1/completions", {"prompt": "x", "request_id": "body"}, x_request_id="header")
    assert reply.json()["id"] == "cmpl-body"
    assert reply.headers["x-request-id"] == "body"


def cancel(api: Api, request_id: str) -> Any:
    """POST to the cancel route."""
    return api.post(f"/v1/requests/{request_id}/cancel", {})


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_request_ends_with_an_error(api: Api, path: str, stream: bool) -> None:
    api.engine.paused = True
    body = PROMPTS[path] | ({"stream": True} if stream else {})
    path = "/generate_stream" if stream and path == "/generate" else path
    with ThreadPoolExecutor() as pool:
        running = pool.submit(api.post, path, body, x_request_id="mine")
        wait_until(lambda: api.engine.in_flight == 1)
        reply = cancel(api, "mine")
        assert (reply.status_code, reply.json()) == (200, {"id": "mine", "cancelled": 1})
        ended = running.result()
    if stream:
        assert ended.status_code == 200
        assert "The request was cancelled" in ended.text
        assert "cancelled" in ended.text
    else:
        assert (ended.status_code, ended.json()["error_type"]) == (499, "cancelled")
        assert error_message(ended) == "The request was cancelled"
    assert api.engine.cancelled == [1]
    assert api.metric('tgi_request_failure{err="cancelled"}') == 1
    assert api.state.permits.taken == 0
    assert cancel(api, "mine").status_code == 404


def test_all_choices_are_cancelled_and_either_form_of_the_id_will_do(api: Api) -> None:
    api.engine.paused = True
    with ThreadPoolExecutor() as pool:
        for known in ("cmpl-a-b", "a-b"):
            body = {"prompt": ["x", "y"], "n": 2, "stream": True}
            running = pool.submit(api.post, "/v1/completions", body, x_request_id="a-b")
            wait_until(lambda: api.engine.in_flight == 4)
            assert cancel(api, known).json() == {"id": known, "cancelled": 4}
            found = events(running.result().text)
            assert found[0]["error"]["code"] == "cancelled"
            assert found[1:] == ["[DONE]"]


@pytest.mark.parametrize("request_id", ["x", "cmpl-x", "resp_", "a%20b"])
def test_an_id_that_is_not_running(shared_api: Api, request_id: str) -> None:
    reply = cancel(shared_api, request_id)
    assert (reply.status_code, reply.json()["error_type"]) == (404, "request_not_found")


def test_a_finished_request_is_forgotten(api: Api) -> None:
    for path, body in PROMPTS.items():
        api.post(path, body, x_request_id="mine")
        assert cancel(api, "mine").status_code == 404


def test_requests_that_share_an_id_are_cancelled_together(api: Api) -> None:
    api.engine.paused = True
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(api.post, "/generate", {"inputs": "x"}, x_request_id="same") for _ in range(2)]
        wait_until(lambda: api.engine.in_flight == 2)
        assert cancel(api, "same").json()["cancelled"] == 2
        assert [future.result().status_code for future in running] == [499, 499]


def test_on_a_socket_a_streams_id_comes_before_its_first_token(tokenizer: TextTokenizer) -> None:
    state = make_state(tokenizer)
    state.client.paused = True  # type: ignore[attr-defined]
    with LiveServer(state) as server, server.post("/generate_stream", {"inputs": "x"}) as stream:
        head = read_until(stream, b"\r\n\r\n")
        found = re.search(rb"x-request-id: ([0-9a-f]{32})", head)
        assert found is not None
        with server.post(f"/v1/requests/{found[1].decode()}/cancel", {}) as other:
            assert b'"cancelled":1' in read_until(other, b"}")
        assert b'"error_type":"cancelled"' in read_until(stream, b"0\r\n\r\n")
