"""JSON schemas before any engine sees them: is it a schema at all, and what is made of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tgi_core.sampling.grammar.engine import GrammarError

MAX_NESTING = 100
"""Objects and arrays inside each other in a schema's JSON. Parsers recurse; real schemas stay below 30."""

JsonSchema = dict[str, Any]

_TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))

_ONE_SCHEMA = frozenset(
    (
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    )
)
_SCHEMA_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_SCHEMA_MAPS = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))
_COUNTS = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")
_COMBINATORS = frozenset(("$ref", "allOf", "anyOf", "oneOf"))
_OBJECT_KEYWORDS = frozenset(
    ("additionalProperties", "minProperties", "patternProperties", "properties", "required", "unevaluatedProperties")
)


def read_schema(source: str) -> JsonSchema:
    """The schema in a JSON text, its structure checked: types of keywords, depth.

    What is checked is what every engine needs; keywords that are unknown are ignored, as the standard asks.

    Raises:
        GrammarError: it is not a schema; the error names the place.
    """
    try:
        schema = msgspec.json.decode(source)
    except (msgspec.DecodeError, RecursionError) as error:
        raise GrammarError(f"the schema is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise GrammarError("a schema is an object", "#")
    _check_nesting(schema)
    for place, subschema in subschemas(schema):
        for keyword, value in subschema.items():
            check = _CHECKS.get(keyword)
            problem = check(value) if check is not None else None
            if problem is not None:
                raise GrammarError(f"`{keyword}` {problem}. Given: {_shown(value)}", place)
    return schema


def subschemas(schema: JsonSchema) -> Iterator[tuple[str, JsonSchema]]:
    """The schema and all schemas inside it that are objects, each with its place, outer ones first."""
    pending: list[tuple[str, Any]] = [("#", schema)]
    while pending:
        place, current = pending.pop()
        if not isinstance(current, dict):
            continue
        yield place, current
        pending.extend(reversed(list(children(place, current))))


def children(place: str, schema: JsonSchema) -> Iterator[tuple[str, Any]]:
    """The values directly inside ``schema`` that stand where a schema is expected."""
    for keyword, value in schema.items():
        path = f"{place}/{keyword}"
        if keyword in _SCHEMA_MAPS and isinstance(value, dict):
            yield from ((f"{path}/{_escaped(name)}", inner) for name, inner in value.items())
        elif isinstance(value, list) and (keyword in _SCHEMA_LISTS or keyword == "items"):
            yield from ((f"{path}/{index}", inner) for index, inner in enumerate(value))
        elif keyword in _ONE_SCHEMA:
            yield path, value


def normalize_schema(schema: JsonSchema) -> JsonSchema:
    """The schema that is compiled, made in place: it allows no more than the one given.

    An object that lists its ``properties`` and says nothing of others has no others, as in TGI: otherwise a model
    that goes on inventing properties never ends. Schemas that combine objects (``allOf``, or ``properties`` beside
    ``$ref``, ``anyOf`` and the like) are left as they are, because closed parts may have nothing in common.
    ``uniqueItems: false`` says nothing and is dropped, since engines refuse the keyword; a count such as 2.0 becomes 2.
    """
    found = [subschema for _, subschema in subschemas(schema)]
    combined = any(_combines(subschema) for subschema in found)
    for subschema in found:
        if subschema.get("uniqueItems") is False:
            del subschema["uniqueItems"]
        subschema.update({count: int(subschema[count]) for count in _COUNTS if isinstance(subschema.get(count), float)})
        if not combined and _is_open_by_omission(subschema):
            subschema["additionalProperties"] = False
    return schema


def _combines(schema: JsonSchema) -> bool:
    all_of = schema.get("allOf")
    if isinstance(all_of, list) and len(all_of) > 1:
        return True
    combinators = _COMBINATORS & schema.keys()
    return len(combinators) > 1 or bool(combinators and _OBJECT_KEYWORDS & schema.keys())


def _is_open_by_omission(schema: JsonSchema) -> bool:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return False
    if {"additionalProperties", "patternProperties", "unevaluatedProperties"} & schema.keys():
        return False
    # Closing it must not make it impossible.
    return set(schema.get("required", ())) <= properties.keys() and schema.get("minProperties", 0) <= len(properties)


def _check_nesting(schema: JsonSchema) -> None:
    level: list[Any] = [schema]
    for _ in range(MAX_NESTING):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise GrammarError(f"the schema is nested more than {MAX_NESTING} levels deep")


def _check_schema(value: Any) -> str | None:
    return None if isinstance(value, dict | bool) else "is a schema: an object, true or false"


def _check_items(value: Any) -> str | None:
    return _check_schema_list(value) if isinstance(value, list) else _check_schema(value)


def _check_schema_list(value: Any) -> str | None:
    if isinstance(value, list) and value and all(isinstance(inner, dict | bool) for inner in value):
        return None
    return "is a list of one or more schemas"


def _check_schema_map(value: Any) -> str | None:
    if isinstance(value, dict) and all(isinstance(inner, dict | bool) for inner in value.values()):
        return None
    return "is an object whose values are schemas"


def _check_type(value: Any) -> str | None:
    names = value if isinstance(value, list) else [value]
    if names and all(isinstance(name, str) and name in _TYPES for name in names):
        return None
    return f"is one or more of {', '.join(sorted(_TYPES))}"


def _check_strings(value: Any) -> str | None:
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return None
    return "is a list of strings"


def _check_enum(value: Any) -> str | None:
    return None if isinstance(value, list) and value else "is a list of one or more values"


def _check_count(value: Any) -> str | None:
    # 2.0 is an integer to JSON Schema.
    is_whole = type(value) is int or (type(value) is float and value.is_integer())
    return None if is_whole and value >= 0 else "is a whole number, 0 or more"


def _check_number(value: Any) -> str | None:
    return None if type(value) in (int, float) else "is a number"


def _check_multiple(value: Any) -> str | None:
    return None if type(value) in (int, float) and value > 0 else "is a number above 0"


def _check_exclusive(value: Any) -> str | None:
    # Draft 4 had a switch here.
    return None if isinstance(value, bool) else _check_number(value)


def _check_string(value: Any) -> str | None:
    return None if isinstance(value, str) else "is a string"


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    **dict.fromkeys(_ONE_SCHEMA, _check_schema),
    **dict.fromkeys(_SCHEMA_LISTS, _check_schema_list),
    **dict.fromkeys(_SCHEMA_MAPS, _check_schema_map),
    **dict.fromkeys(_COUNTS, _check_count),
    **dict.fromkeys(("maximum", "minimum"), _check_number),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum"), _check_exclusive),
    **dict.fromkeys(("$ref", "format", "pattern"), _check_string),
    "enum": _check_enum,
    "items": _check_items,
    "multipleOf": _check_multiple,
    "required": _check_strings,
    "type": _check_type,
}


def _escaped(name: str) -> str:
    """A property's name in a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
