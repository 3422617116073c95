"""Every way to ask for structured output means one constraint, and what is malformed is named with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tgi_core.errors import ValidationError
from tgi_core.requests.grammar import (
    ANY_OBJECT,
    MAX_GRAMMAR_BYTES,
    only_grammar,
    read_grammar,
    read_guided_choice,
    read_guided_grammar,
    read_guided_json,
    read_guided_regex,
    read_structured_outputs,
)
from tgi_core.sampling.grammar import Grammar, GrammarKind

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"enum": ["é", 10**30]}}}
SCHEMA_GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA, separators=(",", ":"), ensure_ascii=False))
OBJECT_GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json", "value": SCHEMA}, SCHEMA_GRAMMAR),
        ({"type": "json", "value": json.dumps(SCHEMA)}, SCHEMA_GRAMMAR),
        ({"type": "json_object", "value": SCHEMA}, SCHEMA_GRAMMAR),
        ({"type": "json_object", "schema": SCHEMA}, SCHEMA_GRAMMAR),
        ({"type": "json_object"}, OBJECT_GRAMMAR),
        ({"type": "json_object", "value": None, "schema": None}, OBJECT_GRAMMAR),
        ({"type": "json_schema", "value": {"schema": SCHEMA, "name": "x", "strict": True}}, SCHEMA_GRAMMAR),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}, SCHEMA_GRAMMAR),
        ({"type": "json_schema", "json_schema": {"schema": json.dumps(SCHEMA)}}, SCHEMA_GRAMMAR),
        ({"type": "regex", "value": "日本 🤗+"}, Grammar(GrammarKind.REGEX, "日本 🤗+")),
        ({"type": "ebnf", "value": 'start: "a"'}, Grammar(GrammarKind.EBNF, 'start: "a"')),
        ({"type": "choice", "value": ["a", "é", "a"]}, Grammar(GrammarKind.CHOICE, '["a","é"]')),
    ],
)
def test_shapes_of_tgi_and_openai(value: dict[str, Any] | None, expected: Grammar | None) -> None:
    for name in ("grammar", "response_format"):
        assert read_grammar(name, value) == expected


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({}, "`grammar.type`"),
        ({"type": "ebnf2", "value": "x"}, "`grammar.type` must be one of .*Given: 'ebnf2'"),
        ({"type": ["json"]}, "`grammar.type`"),
        ({"type": "json", "value": 5}, "`grammar.value`"),
        ({"type": "json", "value": [SCHEMA]}, "`grammar.value`"),
        ({"type": "json", "value": "{"}, "`grammar.value` is not valid JSON"),
        ({"type": "json", "value": "[]"}, "`grammar.value`"),
        ({"type": "json", "value": "[" * 100_000}, "`grammar.value` is not valid JSON"),
        ({"type": "json", "value": {"const": "\ud800"}}, "`grammar.value`"),
        ({"type": "json", "value": SCHEMA, "schema": SCHEMA}, "Only one schema can be given"),
        ({"type": "json_object", "schema": "x"}, "`grammar.schema` is not valid JSON"),
        ({"type": "json_schema"}, "`grammar.json_schema`"),
        ({"type": "json_schema", "value": 1}, "`grammar.json_schema`"),
        ({"type": "json_schema", "value": {"name": "x"}}, "`grammar.value.schema` is missing"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "`grammar.json_schema.schema` is missing"),
        ({"type": "json_schema", "json_schema": {"schema": 1}}, "`grammar.json_schema.schema`"),
        ({"type": "regex"}, "`grammar.value`.*Given: nothing"),
        ({"type": "regex", "value": ""}, "`grammar.value`"),
        ({"type": "regex", "value": {"a": 1}}, "`grammar.value`"),
        ({"type": "regex", "value": "\ud800"}, "`grammar.value` must be valid Unicode"),
        ({"type": "regex", "value": "é" * (MAX_GRAMMAR_BYTES // 2 + 1)}, "`grammar.value` must have at most"),
        ({"type": "ebnf", "value": 1}, "`grammar.value`"),
        ({"type": "choice", "value": []}, "`grammar.value`"),
        ({"type": "choice", "value": "ab"}, "`grammar.value`"),
        ({"type": "choice", "value": ["a", ""]}, "`grammar.value`"),
        ({"type": "choice", "value": ["a", 1]}, "`grammar.value`"),
        ({"type": "choice", "value": ["\udfff"]}, "`grammar.value` must be valid Unicode"),
    ],
)
def test_what_is_malformed_is_refused_with_its_place(value: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError, match=place) as caught:
        read_grammar("grammar", value)
    assert caught.value.status == 422
    assert len(str(caught.value)) < 400


def test_a_schema_that_no_json_has_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"not": deep}
    with pytest.raises(ValidationError, match=r"`grammar\.value` cannot be read"):
        read_grammar("grammar", {"type": "json", "value": deep})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ({"json": SCHEMA}, SCHEMA_GRAMMAR),
        ({"json": json.dumps(SCHEMA), "regex": None, "json_object": False}, SCHEMA_GRAMMAR),
        ({"json_object": True}, OBJECT_GRAMMAR),
        ({"regex": "a+"}, Grammar(GrammarKind.REGEX, "a+")),
        ({"choice": ["a", "b"]}, Grammar(GrammarKind.CHOICE, '["a","b"]')),
        ({"grammar": "start: A"}, Grammar(GrammarKind.EBNF, "start: A")),
        ({"regex": "a", "disable_fallback": False}, Grammar(GrammarKind.REGEX, "a")),
    ],
)
def test_vllms_structured_outputs(value: dict[str, Any] | None, expected: Grammar | None) -> None:
    assert read_structured_outputs("structured_outputs", value) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({}, "none of them"),
        ({"json": None}, "none of them"),
        ({"structural_tag": "x"}, "Given: `structural_tag`"),
        ({"json": SCHEMA, "regex": "a"}, r"`structured_outputs\.json` and `structured_outputs\.regex`"),
        ({"json_object": "yes"}, r"`structured_outputs\.json_object`"),
        ({"choice": {}}, r"`structured_outputs\.choice`"),
        ({"regex": 1}, r"`structured_outputs\.regex`"),
    ],
)
def test_structured_outputs_are_refused_with_their_place(value: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        read_structured_outputs("structured_outputs", value)


def test_vllms_older_fields() -> None:
    assert read_guided_json("guided_json", SCHEMA) == SCHEMA_GRAMMAR
    assert read_guided_regex("guided_regex", "a") == Grammar(GrammarKind.REGEX, "a")
    assert read_guided_choice("guided_choice", ["a"]) == Grammar(GrammarKind.CHOICE, '["a"]')
    assert read_guided_grammar("guided_grammar", "start: A") == Grammar(GrammarKind.EBNF, "start: A")
    for read in (read_guided_json, read_guided_regex, read_guided_choice, read_guided_grammar):
        assert read("guided", None) is None
        with pytest.raises(ValidationError, match="`guided_field`"):
            read("guided_field", 7)


def test_one_constraint_at_most() -> None:
    a, b = Grammar(GrammarKind.REGEX, "a"), Grammar(GrammarKind.REGEX, "b")
    assert only_grammar({"grammar": None, "guided_json": None}) is None
    assert only_grammar({"grammar": None, "guided_json": a}) == a
    with pytest.raises(ValidationError, match="`grammar` and `guided_json`"):
        only_grammar({"grammar": a, "guided_regex": None, "guided_json": b})
