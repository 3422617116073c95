"""JSON schemas of the kinds that people send, bounded so that any model comes to an end within some hundred tokens."""

from __future__ import annotations

from typing import Any

JsonSchema = dict[str, Any]


def _string(longest: int = 8, **keywords: Any) -> JsonSchema:
    return {"type": "string", "maxLength": longest, **keywords}


def _integer(lowest: int, highest: int) -> JsonSchema:
    return {"type": "integer", "minimum": lowest, "maximum": highest}


def _object(properties: dict[str, Any], required: list[str] | None = None, **keywords: Any) -> JsonSchema:
    names = list(properties) if required is None else required
    return {
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
        **keywords,
    }


def _array(items: Any, longest: int = 3, **keywords: Any) -> JsonSchema:
    return {"type": "array", "items": items, "maxItems": longest, **keywords}


def _nested(depth: int) -> JsonSchema:
    schema: JsonSchema = {"type": "null"}
    for _ in range(depth):
        schema = _object({"a": schema})
    return schema


SCHEMAS: dict[str, JsonSchema] = {
    "person": _object({"name": _string(), "age": _integer(0, 120), "member": {"type": "boolean"}}),
    "optional properties": _object({f"field_{n}": {"enum": ["a", "b"]} for n in range(12)}, ["field_0"]),
    "nested objects": _object({"a": _object({"b": _object({"c": _object({"d": _integer(1, 9)})})})}),
    "deep": _nested(20),
    "array of integers": _array(_integer(-5, 5), 6),
    "array of arrays": _array(_array(_integer(0, 9), 3), 3),
    "array of objects": _array(_object({"x": _integer(0, 99), "y": _integer(0, 99)}), 3, minItems=1),
    "fixed length": _array({"type": "boolean"}, 4, minItems=4),
    "tuple": {"type": "array", "prefixItems": [_string(4), _integer(1, 3)], "items": False, "minItems": 2},
    "tuple of draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [_integer(1, 3), {"type": "boolean"}],
        "additionalItems": False,
    },
    "enum of strings": {"enum": ["red", "green", "blue"]},
    "enum of all types": {"enum": [None, True, 1, 1.5, "one", [1, 2], {"a": {"b": []}}]},
    "large enum": {"enum": [f"value number {n} of many" for n in range(2_000)]},
    "large enum inside": _object({"code": {"enum": [f"{n:05d}" for n in range(5_000)]}, "ok": {"type": "boolean"}}),
    "const": _object({"kind": {"const": "point"}, "at": {"const": [0, 0]}}),
    "nullable": _object({"v": {"type": ["string", "null"], "maxLength": 4}}),
    "anyOf null": _object({"v": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}}),
    "anyOf objects": {"anyOf": [_object({"a": _integer(1, 2)}), _object({"b": _string(3)})]},
    "anyOf with siblings": {"type": "string", "anyOf": [{"maxLength": 2}, {"pattern": "^x[yz]{1,3}$"}]},
    "oneOf by tag": {
        "oneOf": [
            _object({"type": {"const": "circle"}, "r": _integer(1, 9)}),
            _object({"type": {"const": "square"}, "side": _integer(1, 9)}),
        ]
    },
    "oneOf types": {"oneOf": [{"type": "boolean"}, _integer(0, 9), _string(3)]},
    "allOf": {
        "allOf": [
            {"type": "object", "properties": {"a": _integer(1, 2)}, "required": ["a"]},
            {"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ],
        "maxProperties": 2,
    },
    "allOf of one reference": {
        "$defs": {"unit": {"enum": ["cm", "m"]}},
        **_object({"unit": {"allOf": [{"$ref": "#/$defs/unit"}], "description": "of length"}}),
    },
    "reference": {
        "$defs": {"point": _object({"x": _integer(0, 9), "y": _integer(0, 9)})},
        **_object({"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}}),
    },
    "definitions": {"definitions": {"id": _integer(1, 5)}, **_object({"id": {"$ref": "#/definitions/id"}})},
    "escaped reference": {"$defs": {"a b/c": {"type": "null"}}, **_object({"v": {"$ref": "#/$defs/a%20b~1c"}})},
    "linked list": {
        "$defs": {
            "node": _object({"v": _integer(0, 9), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}})
        },
        "$ref": "#/$defs/node",
    },
    "tree": {
        "$defs": {
            "tree": _object({"name": {"enum": ["a", "b"]}, "children": _array({"$ref": "#/$defs/tree"}, 1)}, ["name"])
        },
        "$ref": "#/$defs/tree",
    },
    "recursion at the root": _object({"v": {"type": "boolean"}, "more": {"$ref": "#"}}, ["v"]),
    "pattern": _object({"plate": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}}),
    "pattern unanchored": _object({"v": {"type": "string", "pattern": "[0-9]{2}", "maxLength": 10}}),
    "pattern with classes": _object({"v": {"type": "string", "pattern": "^\\w{1,5}\\d{2}\\s?(a|b)$"}}),
    "pattern and length": {"type": "string", "pattern": "^[a-f0-9]*$", "minLength": 4, "maxLength": 8},
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^x_[a-c]$": _integer(0, 3), "^y_[a-c]$": _string(3)},
        "additionalProperties": False,
        "maxProperties": 3,
    },
    "map": {
        "type": "object",
        "patternProperties": {"^[a-z]{1,4}$": _integer(0, 3)},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 3,
    },
    "string bounds": _array({"type": "string", "minLength": 2, "maxLength": 5}, 3),
    "integer bounds": _array(_integer(-1000, 123_456), 4),
    "exclusive bounds": _array({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 8}, 4),
    "number bounds": _array({"type": "number", "minimum": -1.5, "maximum": 2.25}, 3),
    "number": {"type": "number"},
    "multiple of": _array({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700}, 3),
    "date and time": _object(
        {
            "date": {"type": "string", "format": "date"},
            "time": {"type": "string", "format": "time"},
            "at": {"type": "string", "format": "date-time"},
        }
    ),
    "uuid": _object({"id": {"type": "string", "format": "uuid"}}),
    "addresses": _object({"v4": {"type": "string", "format": "ipv4"}, "v6": {"type": "string", "format": "ipv6"}}),
    "email": _object({"email": {"type": "string", "format": "email", "maxLength": 24}}),
    "uri": _object({"uri": {"type": "string", "format": "uri", "maxLength": 40}}),
    "hostname": _object({"host": {"type": "string", "format": "hostname", "maxLength": 20}}),
    "duration": _object({"for": {"type": "string", "format": "duration", "maxLength": 12}}),
    "unicode names": _object({"größe": _integer(1, 3), "名前": _string(4), "🤗": {"enum": ["é", "日本語", "👨‍👩‍👧"]}}),
    "unicode pattern": _object({"v": {"type": "string", "pattern": "^[äöü日本]{1,4}$"}}),
    "awkward names": _object({'a"b': {"type": "null"}, "c\\d": {"type": "null"}, "e\nf": {"type": "null"}}),
    "annotations": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Answer",
        "description": "An answer",
        **_object({"answer": _string(6, title="Answer", description="the answer", examples=["x"], default="x")}),
    },
    "any of many": _array(
        {"anyOf": [_object({"op": {"const": f"op{n}"}, "arg": _integer(0, n)}) for n in range(1, 20)]}, 2
    ),
}
