"""Over real sockets: streams arrive as they are made, and a client that goes frees its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.api import FakeEngine, LiveServer, make_state, read_until, wait_until
from tgi_api.state import AppState
from tgi_core.engine.frames import Finish
from tgi_core.requests import TextTokenizer

CHAT = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
STREAMS: list[tuple[str, Any]] = [
    ("/generate_stream", {"inputs": "x"}),
    ("/", {"inputs": "x", "stream": True}),
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", {"prompt": ["x", "y"], "stream": True}),
    ("/v1/completions", {"prompt": "x", "n": 2, "stream": True}),
    ("/v1/chat/completions", {**CHAT, "n": 3}),
]
PLAIN: list[tuple[str, Any]] = [
    ("/generate", {"inputs": "x"}),
    ("/v1/chat/completions", {**CHAT, "stream": False}),
    ("/v1/completions", {"prompt": ["x", "y"]}),
    ("/v1/completions", {"prompt": ["x", "y"], "n": 2}),
    ("/generate", {"inputs": "x", "parameters": {"best_of": 2, "do_sample": True}}),
]


@pytest.fixture
def state(tokenizer: TextTokenizer) -> AppState:
    """A server whose engine waits for the test to push tokens."""
    state = make_state(tokenizer)
    engine_of(state).paused = True
    return state


@pytest.fixture
def server(state: AppState) -> Iterator[LiveServer]:
    with LiveServer(state) as server:
        yield server


def engine_of(state: AppState) -> FakeEngine:
    """The fake behind the server."""
    engine = state.client
    assert isinstance(engine, FakeEngine)
    return engine


def failures(state: AppState, cause: str) -> int:
    """The count of failures by ``cause``."""
    (line,) = [line for line in state.metrics.request_failure.lines() if f'"{cause}"' in line]
    return int(line.rpartition(" ")[2])


@pytest.mark.parametrize(("path", "body"), STREAMS)
def test_a_client_that_leaves_a_stream_cancels_it(state: AppState, server: LiveServer, path: str, body: Any) -> None:
    engine = engine_of(state)
    connection = server.post(path, body)
    wait_until(lambda: engine.in_flight)
    in_flight = engine.in_flight
    server.loop.call_soon_threadsafe(engine.push, 1, 300)
    read_until(connection, b"data: ")
    connection.close()
    wait_until(lambda: state.permits.taken == 0)
    assert len(engine.cancelled) == in_flight
    assert failures(state, "dropped") == in_flight


@pytest.mark.parametrize(("path", "body"), PLAIN)
def test_a_client_that_stops_waiting_cancels(state: AppState, server: LiveServer, path: str, body: Any) -> None:
    engine = engine_of(state)
    connection = server.post(path, body)
    wait_until(lambda: engine.in_flight)
    in_flight = engine.in_flight
    connection.close()
    wait_until(lambda: state.permits.taken == 0)
    assert len(engine.cancelled) == in_flight
    assert failures(state, "dropped") == in_flight


def test_each_event_arrives_when_it_is_made(state: AppState, server: LiveServer) -> None:
    engine = engine_of(state)
    with server.post("/generate_stream", {"inputs": "x"}) as connection:
        head = read_until(connection, b"\r\n\r\n")
        assert b"HTTP/1.1 200" in head
        assert b"transfer-encoding: chunked" in head
        wait_until(lambda: engine.in_flight)
        server.loop.call_soon_threadsafe(engine.push, 1, 300)
        assert b'"index":1' in read_until(connection, b"\n\n\r\n")
        server.loop.call_soon_threadsafe(engine.push, 1, 301, Finish.LENGTH)
        assert b'"index":2' in read_until(connection, b"0\r\n\r\n")
    wait_until(lambda: state.permits.taken == 0)
    assert engine.cancelled == []


def test_the_connection_is_kept_after_a_stream(state: AppState, server: LiveServer) -> None:
    engine_of(state).paused = False
    engine_of(state).say(" fox")
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
        for _ in range(3):
            with client.stream("POST", "/generate_stream", json={"inputs": "x"}) as reply:
                assert "fox" in reply.read().decode()
        network = reply.extensions["network_stream"]
        with client.stream("POST", "/v1/chat/completions", json=CHAT) as reply:
            assert reply.read().decode().count("[DONE]") == 1
        assert reply.extensions["network_stream"].get_extra_info("socket") is network.get_extra_info("socket")


def test_a_death_of_the_engine_ends_streams_with_one_error(state: AppState, server: LiveServer) -> None:
    engine = engine_of(state)
    with server.post("/v1/chat/completions", CHAT) as connection:
        wait_until(lambda: engine.in_flight)
        server.loop.call_soon_threadsafe(engine.engine_down, "killed")
        stream = read_until(connection, b"0\r\n\r\n").decode()
    assert stream.count('"error"') == 1
    assert "killed" in stream
    assert stream.count("[DONE]") == 1
    wait_until(lambda: failures(state, "generation") == 1)
    assert state.permits.taken == 0


def test_a_client_that_leaves_while_it_sends_is_dropped(state: AppState, server: LiveServer) -> None:
    connection = server.connect()
    lines = ("POST /generate HTTP/1.1", "Host: x", "Content-Type: application/json", "Content-Length: 99", "", "{")
    connection.sendall("\r\n".join(lines).encode())
    connection.close()
    wait_until(lambda: failures(state, "dropped") == 1)
    assert engine_of(state).submitted == []
    assert state.permits.taken == 0


def test_many_streams_at_once_keep_to_themselves(state: AppState, server: LiveServer) -> None:
    engine = engine_of(state)
    connections = [server.post("/generate_stream", {"inputs": f"prompt {number}"}) for number in range(20)]
    wait_until(lambda: engine.in_flight == 20)

    def push_all() -> None:
        for submitted in list(engine.submitted):
            for offset in range(3):
                token_id = 270 + submitted.request_id + offset
                engine.push(submitted.request_id, token_id, Finish.LENGTH if offset == 2 else Finish.NOT)

    server.loop.call_soon_threadsafe(push_all)
    tokenizer = state.tokenizer
    by_prompt = {tokenizer.decode(item.prompt, True): item.request_id for item in engine.submitted}
    for number, connection in enumerate(connections):
        with connection:
            stream = read_until(connection, b"0\r\n\r\n")
        first = 270 + by_prompt[f"prompt {number}"]
        assert [b'"id":%d,' % (first + offset) in stream for offset in range(3)] == [True, True, True]


def test_a_host_header_that_is_no_host_gets_a_plain_404(server: LiveServer) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /nope HTTP/1.1\r\nHost: a:b:c\r\nConnection: close\r\n\r\n")
        answer = read_until(connection, b"}")
    assert answer.startswith(b"HTTP/1.1 404")
    assert b'"error_type":"not_found"' in answer
