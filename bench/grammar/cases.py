"""Constraints and typical replies to them."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import numpy as np

from tgi_core.sampling.grammar import Grammar, GrammarKind

_WORDS = ("river", "stone", "Über", "garden", "seven", "café", "north", "light", "東京", "paper", "winter", "letter")


def _schema(schema: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def _object(properties: dict[str, object]) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


class Case(msgspec.Struct, frozen=True):
    """A constraint and how to make a typical reply to it."""

    grammar: Grammar
    reply: Callable[[np.random.Generator], str]


def _words(rng: np.random.Generator, count: int) -> str:
    return " ".join(rng.choice(_WORDS, count))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _person(rng: np.random.Generator) -> str:
    email = f"{rng.choice(('ann', 'bob.lee', 'c_d'))}@{rng.choice(('example', 'mail.example'))}.org"
    return _json({"name": _words(rng, 3), "age": int(rng.integers(120)), "email": email})


def _order(rng: np.random.Generator) -> str:
    lines = [
        {
            "kind": str(rng.choice(("book", "disc", "voucher"))),
            "title": _words(rng, 2),
            "price": round(float(rng.uniform(0, 1000)), 2),
        }
        for _ in range(rng.integers(1, 6))
    ]
    sent = None if rng.random() < 0.5 else "2026-11-30T12:34:56Z"
    return _json({"id": f"ABC-{rng.integers(1000, 9999)}", "lines": lines, "sent": sent})


def _chain(rng: np.random.Generator) -> str:
    node: dict[str, object] | None = None
    for _ in range(rng.integers(1, 6)):
        node = {"name": _words(rng, 2), "child": node}
    return _json(node)


def _anything(rng: np.random.Generator) -> str:
    value = {
        _words(rng, 1): _words(rng, 8),
        "numbers": [1, 2.5, -3e10],
        "more": {"yes": True, "no": None, "list": [{}]},
    }
    return _json(value)


_NODE = _object(
    {"name": {"type": "string", "maxLength": 30}, "child": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}
)
_PERSON = _object(
    {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email": {"type": "string", "format": "email"},
    }
)
_ORDER = _object(
    {
        "id": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
        "lines": {
            "type": "array",
            "minItems": 1,
            "maxItems": 5,
            "items": _object(
                {
                    "kind": {"enum": ["book", "disc", "voucher"]},
                    "title": {"type": "string", "maxLength": 30},
                    "price": {"type": "number", "minimum": 0, "maximum": 1000},
                }
            ),
        },
        "sent": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
    }
)
_CODES = [f"item {number:04d}" for number in range(5_000)]

CASES: dict[str, Case] = {
    "schema, small": Case(_schema(_PERSON), _person),
    "schema, nested": Case(_schema(_ORDER), _order),
    "schema, recursive": Case(_schema({"$defs": {"node": _NODE}, "$ref": "#/$defs/node"}), _chain),
    "schema, enum of 5,000": Case(
        _schema(_object({"code": {"enum": _CODES}})), lambda rng: _json({"code": str(rng.choice(_CODES))})
    ),
    "schema, any object": Case(_schema({"type": "object"}), _anything),
    "regular expression": Case(
        Grammar(GrammarKind.REGEX, r"[a-z]{1,20}(\.[a-z]{1,20})?@[a-z]{1,20}\.(com|org)( \+[0-9]{2} [0-9]{4,7})?"),
        lambda rng: f"{rng.choice(('ann', 'bob.lee'))}@mail.org +49 {rng.integers(10_000, 9_999_999)}",
    ),
}
