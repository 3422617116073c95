"""The concurrency limit: tried without waiting, and given back on every path."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api import Api, error_message, make_state, open_api
from tgi_api.admission import Permits
from tgi_core.errors import EngineUnavailableError, OverloadedError, ValidationError
from tgi_core.requests import TextTokenizer


@pytest.fixture
def narrow(tokenizer: TextTokenizer) -> Iterator[Api]:
    """A server with two places."""
    with open_api(make_state(tokenizer, max_concurrent_requests=2)) as api:
        api.engine.say(" fox")
        yield api


def test_a_full_server_answers_429_at_once(narrow: Api) -> None:
    narrow.state.permits.take(2)
    reply = narrow.post("/generate", {"inputs": "x"})
    assert reply.status_code == 429
    assert reply.json()["error_type"] == "overloaded"
    assert error_message(reply) == (
        "Model is overloaded: 2 of at most 2 generations (--max-concurrent-requests) are running, and the request "
        "needs 1 more"
    )
    assert int(reply.headers["retry-after"]) > 0
    assert narrow.metric('tgi_request_failure{err="overloaded"}') == 1
    narrow.state.permits.release(2)
    assert narrow.post("/generate", {"inputs": "x"}).status_code == 200


def test_a_streamed_request_is_refused_the_same_way(narrow: Api) -> None:
    narrow.state.permits.take(2)
    reply = narrow.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream": True})
    assert reply.status_code == 429


def test_each_prompt_takes_a_place(narrow: Api) -> None:
    assert narrow.post("/v1/completions", {"prompt": ["a", "b"]}).status_code == 200
    narrow.state.permits.take()
    assert narrow.post("/v1/completions", {"prompt": ["a", "b"]}).status_code == 429
    assert narrow.state.permits.taken == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": "x", "parameters": {"best_of": 2, "do_sample": True}}),
        ("/v1/completions", {"prompt": "x", "n": 2}),
        ("/v1/completions", {"prompt": "x", "best_of": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 2, "stream": True}),
    ],
)
def test_each_choice_takes_a_place(narrow: Api, path: str, body: Any) -> None:
    assert narrow.post(path, body).status_code == 200
    assert len(narrow.engine.submitted) == 2
    narrow.state.permits.take()
    assert narrow.post(path, body).status_code == 429
    assert narrow.state.permits.taken == 1


@pytest.mark.parametrize("body", [{"prompt": ["a", "b", "c"]}, {"prompt": ["a", "b"], "n": 2}, {"prompt": "x", "n": 3}])
def test_what_never_has_a_place_is_not_to_be_tried_again(narrow: Api, body: Any) -> None:
    reply = narrow.post("/v1/completions", body)
    assert (reply.status_code, reply.json()["error_type"]) == (422, "validation")
    assert "must be <= 2 (--max-concurrent-requests)" in error_message(reply)
    assert narrow.state.permits.taken == 0


def test_health_does_not_depend_on_the_load(narrow: Api) -> None:
    narrow.state.permits.take(2)
    assert narrow.http.get("/health").status_code == 200


def test_a_draining_server_refuses_and_is_not_healthy(narrow: Api) -> None:
    narrow.state.permits.close()
    reply = narrow.post("/generate", {"inputs": "x"})
    assert reply.status_code == 503
    assert "shutting down" in error_message(reply)
    assert narrow.http.get("/health").status_code == 503


def test_permits_count() -> None:
    async def count() -> None:
        permits = Permits(3)
        permits.take(2)
        with pytest.raises(OverloadedError):
            permits.take(2)
        with pytest.raises(ValidationError):
            permits.take(4)
        permits.take()
        idle = asyncio.create_task(permits.idle())
        permits.release(2)
        await asyncio.sleep(0)
        assert not idle.done()
        permits.release()
        await asyncio.wait_for(idle, 1)
        permits.close()
        with pytest.raises(EngineUnavailableError):
            permits.take()

    asyncio.run(count())
