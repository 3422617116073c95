"""What is a JSON schema, where it is wrong, and what is made of it before an engine sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.json_schemas import SCHEMAS
from tgi_core.sampling.grammar import GrammarError
from tgi_core.sampling.grammar.schema import MAX_NESTING, normalize_schema, read_schema, subschemas


def refusal(schema: Any) -> GrammarError:
    with pytest.raises(GrammarError) as caught:
        read_schema(json.dumps(schema))
    return caught.value


def normalized(schema: dict[str, Any]) -> dict[str, Any]:
    return normalize_schema(read_schema(json.dumps(schema)))


@pytest.mark.parametrize("name", SCHEMAS)
def test_good_schemas_pass(name: str) -> None:
    assert read_schema(json.dumps(SCHEMAS[name])) == SCHEMAS[name]


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("type", "strng"),
        ("type", []),
        ("type", ["string", 1]),
        ("properties", []),
        ("properties", {"a": 1}),
        ("patternProperties", "x"),
        ("$defs", {"a": "x"}),
        ("required", "a"),
        ("required", [1]),
        ("enum", []),
        ("enum", "a"),
        ("anyOf", []),
        ("anyOf", {}),
        ("allOf", [1]),
        ("items", 1),
        ("items", [1]),
        ("additionalProperties", "no"),
        ("not", 1),
        ("minLength", -1),
        ("maxLength", "5"),
        ("maxItems", 2.5),
        ("minItems", True),
        ("minimum", "1"),
        ("maximum", False),
        ("multipleOf", []),
        ("multipleOf", 0),
        ("multipleOf", -3),
        ("minItems", 1e-3),
        ("exclusiveMinimum", "1"),
        ("pattern", 1),
        ("format", None),
        ("$ref", 1),
    ],
)
def test_a_keyword_of_the_wrong_type_is_named_with_its_place(keyword: str, value: Any) -> None:
    error = refusal({"properties": {"a/b": {"items": {keyword: value}}}})
    assert error.place == "#/properties/a~1b/items"
    assert f"`{keyword}`" in error.reason
    assert (error.status, error.error_type) == (422, "validation")
    assert str(error).startswith("Input validation error: grammar is not valid: at `#/properties/a~1b/items`: ")


def test_data_is_not_taken_for_schemas() -> None:
    data = {"type": "nonsense", "properties": 5}
    read_schema(json.dumps({"enum": [data], "const": data, "default": data, "examples": [data], "unknown": data}))
    read_schema(json.dumps({"properties": {"type": {"type": "string"}, "required": {"type": "string"}}}))


def test_nesting_is_bounded() -> None:
    def nested(levels: int) -> dict[str, Any]:
        schema: dict[str, Any] = {}
        for _ in range(levels - 1):
            schema = {"not": schema}
        return schema

    read_schema(json.dumps(nested(MAX_NESTING)))
    assert str(MAX_NESTING) in refusal(nested(MAX_NESTING + 1)).reason
    deep_data = "[" * MAX_NESTING + "]" * MAX_NESTING
    with pytest.raises(GrammarError, match="levels deep"):
        read_schema(f'{{"const": {deep_data}}}')
    with pytest.raises(GrammarError, match="not JSON"):
        read_schema('{"not":' * 5_000 + "{}" + "}" * 5_000)


@pytest.mark.parametrize("source", ["", "{", "[]", "true", '"x"', "{} {}", '{"a": NaN}'])
def test_what_is_no_schema_is_refused(source: str) -> None:
    with pytest.raises(GrammarError):
        read_schema(source)


def test_subschemas_come_with_their_places_outer_ones_first() -> None:
    schema = {
        "properties": {"a": {"items": [{}, True]}, "~": {}},
        "anyOf": [{"then": {}}],
        "$defs": {"d": {"additionalProperties": {}}},
    }
    assert [place for place, _ in subschemas(schema)] == [
        "#",
        "#/properties/a",
        "#/properties/a/items/0",
        "#/properties/~0",
        "#/anyOf/0",
        "#/anyOf/0/then",
        "#/$defs/d",
        "#/$defs/d/additionalProperties",
    ]


def test_an_object_that_lists_its_properties_has_no_others() -> None:
    inner = {"properties": {"b": {}}}
    schema = normalized({"properties": {"a": inner}, "required": ["a"], "$defs": {"d": {"properties": {}}}})
    assert schema["additionalProperties"] is False
    assert schema["properties"]["a"]["additionalProperties"] is False
    assert schema["$defs"]["d"]["additionalProperties"] is False


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {"a": {}}, "additionalProperties": True},
        {"properties": {"a": {}}, "additionalProperties": {"type": "string"}},
        {"properties": {"a": {}}, "patternProperties": {"^x": {}}},
        {"properties": {"a": {}}, "required": ["b"]},
        {"properties": {"a": {}}, "minProperties": 2},
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"properties": {"a": {}}, "$ref": "#/$defs/d", "$defs": {"d": {"properties": {"b": {}}}}},
        {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"properties": {"b": {}}}]},
        {"required": ["a"], "oneOf": [{"properties": {"b": {}}}]},
        {"anyOf": [{"properties": {"a": {}}}], "allOf": [{"properties": {"b": {}}}]},
    ],
)
def test_objects_stay_open_where_closing_could_forbid_too_much(schema: dict[str, Any]) -> None:
    assert normalized(schema) == schema


def test_an_allof_of_one_closes_like_its_member() -> None:
    schema = normalized({"properties": {"a": {"allOf": [{"$ref": "#/$defs/d"}]}}, "$defs": {"d": {"properties": {}}}})
    assert schema["$defs"]["d"]["additionalProperties"] is False


def test_a_count_may_be_written_as_a_float() -> None:
    schema = normalized({"maxLength": 2.0, "items": {"minItems": 1, "maxItems": 1e1}})
    assert json.dumps(schema) == '{"maxLength": 2, "items": {"minItems": 1, "maxItems": 10}}'


def test_unique_items_false_says_nothing() -> None:
    assert normalized({"items": {"uniqueItems": False}}) == {"items": {}}
    assert normalized({"uniqueItems": True}) == {"uniqueItems": True}
