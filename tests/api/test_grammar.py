"""Structured output: what a request asks for is tested first and reaches the engine normalized."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.api import Api, error_message, make_state, open_api
from tgi_core.requests import TextTokenizer
from tgi_core.sampling.grammar import Grammar, GrammarKind

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
REGEX = {"type": "regex", "value": "yes|no"}
ROUTES: list[tuple[str, Any]] = [
    ("/generate", {"inputs": "x", "parameters": {"grammar": REGEX}}),
    ("/generate_stream", {"inputs": "x", "parameters": {"grammar": REGEX}}),
    ("/v1/chat/completions", {"messages": HELLO, "guided_regex": "yes|no"}),
    ("/v1/chat/completions", {"messages": HELLO, "guided_regex": "yes|no", "stream": True}),
    ("/v1/completions", {"prompt": "x", "guided_regex": "yes|no"}),
]


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_grammar_is_tested_and_goes_to_the_engine_normalized(api: Api, path: str, body: Any) -> None:
    assert api.post(path, body).status_code == 200
    assert api.grammars.checked == [Grammar(GrammarKind.REGEX, "yes|no")]
    assert api.engine.submitted[0].grammar == Grammar(GrammarKind.REGEX, "YES|NO")


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_one_that_cannot_be_served_is_told_before_anything_starts(api: Api, path: str, body: Any) -> None:
    api.grammars.refusal = "too complex"
    reply = api.post(path, body)
    assert (reply.status_code, reply.json()["error_type"]) == (422, "validation")
    assert "too complex" in error_message(reply)
    assert api.engine.submitted == []
    assert api.state.permits.taken == 0


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_server_without_grammar_support_refuses(tokenizer: TextTokenizer, path: str, body: Any) -> None:
    with open_api(make_state(tokenizer, grammars=False)) as api:
        reply = api.post(path, body)
        assert reply.status_code == 422
        assert "--disable-grammar-support" in error_message(reply)
        assert api.post("/generate", {"inputs": "x"}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "value": {"name": "n", "schema": SCHEMA}}},
        {"response_format": {"type": "json_object", "value": SCHEMA}},
        {"response_format": {"type": "json", "value": SCHEMA}},
        {"guided_json": SCHEMA},
        {"structured_outputs": {"json": SCHEMA}},
    ],
)
def test_all_shapes_of_a_schema_are_the_same(api: Api, body: Any) -> None:
    assert api.post("/v1/chat/completions", {"messages": HELLO, **body}).status_code == 200
    (grammar,) = api.grammars.checked
    assert grammar.kind is GrammarKind.JSON_SCHEMA
    assert json.loads(grammar.source) == SCHEMA


def test_a_format_of_text_is_none(api: Api) -> None:
    assert api.post("/v1/chat/completions", {"messages": HELLO, "response_format": {"type": "text"}}).status_code == 200
    assert api.grammars.checked == []
    assert api.engine.submitted[0].grammar is None


def test_several_prompts_and_choices_are_tested_once(api: Api) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "guided_choice": ["x", "y"]}
    assert api.post("/v1/completions", body).status_code == 200
    assert len(api.grammars.checked) == 1
    assert len({submitted.grammar for submitted in api.engine.submitted}) == 1
    assert len(api.engine.submitted) == 4


def test_what_is_too_long_is_told_before_the_grammar_is_tested(api: Api) -> None:
    body = {"inputs": "word " * 200, "parameters": {"grammar": REGEX}}
    assert "`inputs` must have less than" in error_message(api.post("/generate", body))
    assert api.grammars.checked == []
