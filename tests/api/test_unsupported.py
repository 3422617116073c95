"""A server whose device cannot do everything: what each API is told, and what it gets all the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from tests.api.test_tools import WEATHER
from tests.support.api import INFO, Api, error_message, make_state, open_api
from tgi_core.contract import UnsupportedParameter
from tgi_core.requests import TextTokenizer
from tgi_core.sampling.defaults import SamplingDefaults

REASON = "the library samples by itself"
NAMES = ("seed", "top_k", "min_p", "relative_frequency_penalty", "logprobs", "prompt_logprobs", "grammar")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CHAT = {"messages": [{"role": "user", "content": "x"}]}


@pytest.fixture(scope="module")
def weak_api(tokenizer: TextTokenizer) -> Iterator[Api]:
    info = replace(INFO, unsupported_parameters=[UnsupportedParameter(name, REASON) for name in NAMES])
    defaults = SamplingDefaults(min_p=0.1, top_p=0.5)
    with open_api(make_state(tokenizer, info=info, defaults=defaults)) as api:
        api.engine.say(" fox jumps")
        api.engine.logprob = math.nan
        yield api


def events(reply: Any) -> list[str]:
    return [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/generate", {"inputs": "x", "parameters": {"do_sample": True, "seed": 7}}, "seed"),
        ("/generate_stream", {"inputs": "x", "parameters": {"top_n_tokens": 2}}, "top_n_tokens"),
        ("/generate", {"inputs": "x", "parameters": {"best_of": 2, "do_sample": True}}, "best_of"),
        ("/generate", {"inputs": "x", "parameters": {"decoder_input_details": True}}, "decoder_input_details"),
        ("/", {"inputs": "x", "parameters": {"frequency_penalty": 0.5}}, "frequency_penalty"),
        ("/v1/completions", {"prompt": "x", "seed": 7}, "seed"),
        ("/v1/completions", {"prompt": "x", "logprobs": 1}, "logprobs"),
        ("/v1/completions", {"prompt": "x", "best_of": 2}, "best_of"),
        ("/v1/completions", {"prompt": "x", "echo": True, "logprobs": 0, "stream": True}, "logprobs"),
        ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2}, "logprobs"),
        ("/v1/chat/completions", CHAT | {"min_p": 0.5, "stream": True}, "min_p"),
        ("/v1/messages", CHAT | {"model": "m", "max_tokens": 5, "top_k": 5}, "top_k"),
        ("/invocations", CHAT | {"seed": 7}, "seed"),
    ],
)
def test_what_the_device_cannot_do_is_refused_with_the_reason(
    weak_api: Api, path: str, body: dict[str, Any], field: str
) -> None:
    reply = weak_api.post(path, body)
    assert reply.status_code == 422
    expected = f"Input validation error: `{field}` is not supported here: {REASON}"
    if path == "/invocations":
        assert expected in reply.text
    else:
        assert error_message(reply) == expected
    if path.startswith("/v1/c"):
        assert reply.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": "x", "parameters": {"grammar": {"type": "json", "value": SCHEMA}}}),
        ("/v1/completions", {"prompt": "x", "guided_json": SCHEMA}),
        ("/v1/chat/completions", CHAT | {"response_format": {"type": "json_object"}}),
        ("/v1/chat/completions", CHAT | {"tools": [WEATHER], "tool_choice": "required"}),
        ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}}),
        (
            "/v1/messages",
            CHAT
            | {"model": "m", "max_tokens": 5, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        ),
    ],
)
def test_a_constraint_on_the_output_is_refused_with_the_reason(weak_api: Api, path: str, body: dict[str, Any]) -> None:
    reply = weak_api.post(path, body)
    assert reply.status_code == 422
    assert f"this server constrains no output: {REASON}" in error_message(reply)


def test_tokens_without_log_probabilities_say_null(weak_api: Api) -> None:
    body = {"inputs": "x", "parameters": {"details": True, "do_sample": True}}
    details = weak_api.post("/generate", body).json()["details"]
    assert [token["logprob"] for token in details["tokens"]] == [None] * 3
    streamed = events(weak_api.post("/generate_stream", body))
    assert len(streamed) == 3
    assert all('"logprob":null' in event for event in streamed)
    # Nothing replays what was drawn.
    assert details["seed"] is None
    assert '"seed":null' in streamed[-1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x", "n": 2, "temperature": 0.5}),
        ("/v1/completions", {"prompt": "x", "echo": True, "temperature": 0, "seed": 7}),
        ("/v1/chat/completions", CHAT | {"logprobs": False, "response_format": {"type": "text"}}),
        ("/v1/chat/completions", CHAT | {"tools": [WEATHER]}),
        ("/v1/responses", {"input": "x", "temperature": 0.5}),
        ("/v1/messages", CHAT | {"model": "m", "max_tokens": 5}),
    ],
)
def test_what_it_can_do_is_served(weak_api: Api, path: str, body: dict[str, Any], stream: bool) -> None:
    reply = weak_api.post(path, body | {"stream": stream})
    assert reply.status_code == 200
    assert "fox" in reply.text
    assert "NaN" not in reply.text
    assert "error" not in reply.text.replace('"error":null', "")


def test_defaults_of_the_model_that_it_cannot_do_are_left_out(weak_api: Api) -> None:
    assert weak_api.state.defaults == SamplingDefaults(top_p=0.5)
    assert weak_api.post("/v1/completions", {"prompt": "x"}).status_code == 200
    assert weak_api.engine.submitted[-1].sampling.top_p == 0.5


def test_info_lists_it(weak_api: Api) -> None:
    told = weak_api.http.get("/info").json()["unsupported_parameters"]
    assert set(told) == {
        "seed", "top_k", "min_p", "frequency_penalty", "logprobs", "decoder_input_details", "grammar"
    }  # fmt: skip
    assert set(told.values()) == {REASON}


def test_nan_is_a_fault_where_log_probabilities_are_told(api: Api) -> None:
    api.engine.logprob = math.nan
    assert api.post("/generate", {"inputs": "x"}).status_code == 424
