"""Constraints meant to use up a server: nested repeats, huge bounds, deep nesting, catastrophic regular expressions."""

from __future__ import annotations

import json
from typing import Any

from tgi_core.sampling.grammar import Grammar, GrammarKind


def _schema(value: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def _regex(source: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, source)


def _ebnf(source: str) -> Grammar:
    return Grammar(GrammarKind.EBNF, source)


def _nested_schema(depth: int) -> Grammar:
    source = '{"type":"object","required":["a"],"properties":{"a":' * depth + '{"type":"string"}' + "}}" * depth
    return Grammar(GrammarKind.JSON_SCHEMA, source)


def _nested_any_of(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for level in range(depth):
        schema = {"anyOf": [schema, {"type": "object", "properties": {f"k{level}": schema}}]}
    return schema


def _nested_arrays(depth: int, items: int) -> Any:
    schema: Any = {"type": "string", "maxLength": 1_000}
    for _ in range(depth):
        schema = {"type": "array", "items": schema, "minItems": items, "maxItems": items}
    return schema


def _references(depth: int) -> Any:
    definitions: dict[str, Any] = {f"d{depth}": {"type": "string"}}
    for level in range(depth):
        inner = {"$ref": f"#/$defs/d{level + 1}"}
        definitions[f"d{level}"] = {"type": "object", "properties": {"a": inner, "b": inner}}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def _all_of_references(depth: int) -> Any:
    definitions: dict[str, Any] = {f"d{depth}": {"type": "object", "properties": {"a": {"type": "string"}}}}
    for level in range(depth):
        definitions[f"d{level}"] = {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def _crossed_all_of(groups: int, members: int) -> Any:
    return {
        "type": "object",
        "allOf": [
            {
                "anyOf": [
                    {"properties": {f"p{group}_{member}": {"type": "integer"}}, "required": [f"p{group}_{member}"]}
                    for member in range(members)
                ]
            }
            for group in range(groups)
        ],
    }


MALICIOUS: dict[str, Grammar] = {
    "nested repeats": _regex("(((a{0,1000}){0,1000}){0,1000})"),
    "nested repeats with options": _regex("((ab?){1,500}c?){1,500}d"),
    "backtracking": _regex("((a+)+)+b"),
    "backtracking again": _regex("(x+x+)+y"),
    "ambiguous repeats": _regex("(a|aa|aaa){1,5000}b"),
    "huge repeat": _regex("(abc|def){1000000}"),
    "huge bound": _regex("[a-z]{1,4000000}"),
    "exponential automaton": _regex("(a|b)*a(a|b){60}"),
    "many dots": _regex("(.*a){50}.*b"),
    "unicode classes": _regex("(\\p{L}\\p{N}?){1,3000}"),
    "alternatives": _regex("|".join(f"word{number}[a-z]*x{number}" for number in range(20_000))),
    "parentheses": _regex("(" * 5_000 + "a" + ")" * 5_000),
    "deep schema": _nested_schema(300),
    "very deep schema": _nested_schema(20_000),
    "anyOf inside anyOf": _schema(_nested_any_of(12)),
    "more anyOf": _schema(_nested_any_of(18)),
    "arrays of arrays": _schema(_nested_arrays(3, 1_000)),
    "references of references": _schema(_references(40)),
    "allOf of references": _schema(_all_of_references(20)),
    "crossed allOf": _schema(_crossed_all_of(8, 4)),
    "huge maxLength": _schema({"type": "string", "maxLength": 10**9}),
    "huge minLength": _schema({"type": "string", "minLength": 10**6}),
    "huge minItems": _schema({"type": "array", "items": {"type": "integer"}, "minItems": 10**6}),
    "huge number": _schema({"type": "integer", "minimum": 10**300}),
    "pattern and length": _schema({"type": "string", "pattern": "^(([a-z]{1,100}) ?){1,100}$", "minLength": 5_000}),
    "many patterns at once": _schema(
        {"type": "string", "allOf": [{"pattern": letter} for letter in "abcdefghijklmnop"]}
    ),
    "multiple of a prime": _schema({"type": "integer", "multipleOf": 999_983, "minimum": 0, "maximum": 10**15}),
    "multiples of primes": _schema(
        {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (7919, 7907, 7901)]}
    ),
    "large enum": _schema({"enum": [f"value number {number} of many" for number in range(30_000)]}),
    "thousands of patterns": _schema(
        {"type": "object", "properties": {f"p{number}": {"pattern": f"^a{number}[b-z]+$"} for number in range(3_000)}}
    ),
    "endless reference": _schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
    "left recursion": _ebnf('start: a\na: a a | "x" |'),
    "deep grammar": _ebnf("start: " + "(" * 5_000 + '"a"' + ")" * 5_000),
    "intersections": _ebnf(
        "start: X\nX: /(?s:.*)a(?s:.*)/ & /(?s:.*)b(?s:.*)/ & ~/(?s:.*)cc(?s:.*)/ & /(.|\\n){0,5000}/"
    ),
    "negations": _ebnf("start: X\nX: ~(~/.*a.{20}/ & ~/.*b.{20}/)"),
    "repeated groups": _ebnf('start: (("a"|"b"){1,1000} "c"){1,1000}'),
}
