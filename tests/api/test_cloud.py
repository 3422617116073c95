"""``/invocations``, ``/vertex`` and the paths that Vertex AI's environment names."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.api import Api, error_message, events, make_state, open_api
from tgi_api.app import require_free_routes
from tgi_core.config import ApiConfig
from tgi_core.errors import StartupError
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
        ({"instances": [{**CHAT, "tools": [{"function": {"name": "f"}}]}]}, "`instances[0].tools`"),
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
        for instance, count in (({"inputs": "a"}, 3), ({"inputs": "a", "parameters": {"best_of": 2, "top_k": 5}}, 2)):
            reply = api.post("/vertex", {"instances": [instance] * count})
            assert (reply.status_code, reply.json()["error_type"]) == (422, "validation")
            assert "--max-concurrent-requests" in error_message(reply)
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


def test_errors_on_a_predict_path_under_v1_have_tgis_form(tokenizer: TextTokenizer) -> None:
    routes = {"predict_route": "/v1/endpoints/1:predict", "health_route": "/v1/endpoints/1"}
    with open_api(make_state(tokenizer, **routes)) as api:
        assert set(api.post(routes["predict_route"], {"instances": []}).json()) == {"error", "error_type"}
        api.engine.engine_down("gone")
        assert set(api.http.get(routes["health_route"]).json()) == {"error", "error_type"}
        paths = api.http.get("/api-doc/openapi.json").json()["paths"]
        refused = paths[routes["predict_route"]]["post"]["responses"]["422"]
        assert refused["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ErrorResponse"}


@pytest.mark.parametrize(
    ("routes", "variable"),
    [
        ({"predict_route": "/generate"}, "AIP_PREDICT_ROUTE=/generate"),
        ({"predict_route": "/health"}, "AIP_PREDICT_ROUTE=/health"),
        ({"health_route": "/metrics"}, "AIP_HEALTH_ROUTE=/metrics"),
    ],
)
def test_paths_of_other_routes_are_refused_at_start(routes: dict[str, str], variable: str) -> None:
    with pytest.raises(StartupError, match=variable):
        require_free_routes(ApiConfig(**routes))


def test_paths_that_are_free_at_start() -> None:
    require_free_routes(ApiConfig(predict_route="/vertex", health_route="/ping"))
    require_free_routes(ApiConfig(predict_route="/predict", health_route="/alive"))
