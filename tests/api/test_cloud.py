"""``/invocations``, ``/vertex`` and the paths that Vertex AI's environment names."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.api import Api, error_message, events, make_state, open_api
from tgi_core.requests import TextTokenizer

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/", {"inputs": "hi", "parameters": {"details": True}}),
        ("/", {"inputs": "hi", "messages": None}),
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {"inputs": None, **CHAT}),
        ("/v1/completions", {"prompt": ["hi", "ho"]}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_invocations_are_what_their_body_says(api: Api, path: str, body: dict[str, Any], stream: bool) -> None:
    ids = {"x_request_id": "r"}
    direct = api.post(path, {**body, "stream": stream}, **ids)
    invoked = api.post("/invocations", {**body, "stream": stream}, **ids)
    assert direct.status_code == invoked.status_code == 200
    assert same(invoked.text) == same(direct.text)
    assert invoked.headers["content-type"] == direct.headers["content-type"]


def same(text: str) -> str:
    """A reply without the second in which it was made and the random seed."""
    return re.sub(r'"(created|seed)":\d+', "", text)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({}, "`inputs`, `messages`, `prompt`"),
        ([], "object"),
        ({"inputs": 3}, "$.inputs"),
        ({"inputs": 3, **CHAT}, "$.inputs"),
        ({"messages": []}, "must not be empty"),
        ({"prompt": []}, "must not be empty"),
        ({"prompt": "x", "suffix": "y"}, "Suffix"),
    ],
)
def test_invocations_that_are_refused(shared_api: Api, body: Any, part: str) -> None:
    reply = shared_api.post("/invocations", body)
    assert reply.status_code == 422
    assert part in error_message(reply)
    assert shared_api.state.permits.taken == 0


def test_vertex_predicts_in_order(api: Api) -> None:
    tokenizer = api.state.tokenizer
    api.engine.replies = [api.engine.reply, api.engine.reply[:1]]
    parameters = {"max_new_tokens": 9, "temperature": 0.5, "seed": 3, "stop": ["zz"]}
    reply = api.post("/vertex", {"instances": [{"inputs": "a", "parameters": parameters}, CHAT]})
    assert reply.json() == {"predictions": [" fox jumps", " fox"]}
    generate, chat = api.engine.submitted
    assert (generate.max_new_tokens, generate.sampling.temperature, generate.sampling.seed) == (9, 0.5, 3)
    assert tokenizer.decode(chat.prompt, True) == "<user>hi\n<assistant>"
    assert api.state.permits.taken == 0


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({}, "`instances`"),
        ({"instances": []}, "must not be empty"),
        ({"instances": [{"inputs": "x"}, {"inputs": 3}]}, "(in `instances[1]`)"),
        ({"instances": [{}]}, "`messages`"),
        ({"instances": [3]}, "`instances[0]`"),
        ({"instances": [{"inputs": ""}]}, "must not be empty"),
        ({"instances": [{**CHAT, "stream": True}]}, "must not stream"),
        ({"instances": [{**CHAT, "n": 2}]}, "several choices"),
    ],
)
def test_vertex_requests_that_are_refused(shared_api: Api, body: Any, part: str) -> None:
    reply = shared_api.post("/vertex", body)
    assert reply.status_code == 422
    assert part in error_message(reply)
    assert shared_api.state.permits.taken == 0


def test_vertex_has_its_instances_failures(api: Api) -> None:
    api.engine.fail_after = 1
    assert api.post("/vertex", {"instances": [{"inputs": "a"}, {"inputs": "b"}]}).status_code == 424
    assert api.engine.in_flight == api.state.permits.taken == 0


def test_more_instances_than_places(tokenizer: TextTokenizer) -> None:
    with open_api(make_state(tokenizer, max_concurrent_requests=2)) as api:
        api.engine.say(" fox")
        assert api.post("/vertex", {"instances": [{"inputs": "a"}] * 3}).status_code == 429
        assert api.state.permits.taken == 0
        assert api.post("/vertex", {"instances": [{"inputs": "a"}] * 2}).status_code == 200


def test_paths_of_the_environment(tokenizer: TextTokenizer) -> None:
    routes = {"predict_route": "/models/1:predict", "health_route": "/models/1"}
    with open_api(make_state(tokenizer, **routes, api_key="k")) as api:
        api.engine.say(" fox")
        body = {"instances": [{"inputs": "a"}]}
        assert api.post("/models/1:predict", body).status_code == 401
        assert api.post("/models/1:predict", body, authorization="Bearer k").json() == {"predictions": [" fox"]}
        assert api.http.get("/models/1").status_code == 200
        api.engine.engine_down("gone")
        assert api.http.get("/models/1").status_code == 503
        paths = api.http.get("/api-doc/openapi.json").json()["paths"]
        assert {"/models/1:predict", "/models/1", "/vertex"} <= set(paths)


@pytest.mark.parametrize("routes", [{"predict_route": "/vertex", "health_route": "/health"}, {"health_route": "/ping"}])
def test_paths_that_are_there_anyway(tokenizer: TextTokenizer, routes: dict[str, str]) -> None:
    with open_api(make_state(tokenizer, **routes)) as api:
        assert api.http.get("/health").status_code == 200


def test_a_stream_over_invocations_is_the_routes_own(api: Api) -> None:
    text = api.post("/invocations", {"inputs": "hi", "stream": True}).text
    assert events(text)[-1]["generated_text"] == "hi fox jumps"
    assert "[DONE]" not in text
    assert api.post("/invocations", {**CHAT, "stream": True}).text.endswith("data: [DONE]\n\n")
