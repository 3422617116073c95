"""JSON schemas on their way to llguidance: what it would read too widely is written so that it does not."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import unquote

from tgi_core.sampling.grammar.engine import GrammarError
from tgi_core.sampling.grammar.llguidance_pattern import without_nul
from tgi_core.sampling.grammar.schema import JsonSchema, subschemas

EXACT_INTEGERS = 1 << 53
"""The library keeps numbers as 64-bit floats, which hold every integer up to here."""
SMALLEST_INTEGER = -(1 << 63) + 1024
"""The library cannot read a lower bound below; the float next to -2^63."""

_COMMON_YEAR = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP = r"(?:0[48]|[2468][048]|[13579][26])"
_DATE = (
    rf"(?:{_COMMON_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    rf"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    rf"|(?:[0-9]{{2}}{_LEAP}|{_LEAP}00)-02-29)"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
    r"(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
FORMAT_PATTERNS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}[tT]{_TIME}$"}
"""Formats of RFC 3339, without leap seconds and without the year 0, which many parsers refuse."""

_LOWER_BOUNDS = ("minimum", "exclusiveMinimum")
_UPPER_BOUNDS = ("maximum", "exclusiveMaximum")


def library_schema(schema: JsonSchema) -> JsonSchema:
    """A copy of ``schema`` that allows no more than it, even as the library reads it.

    Raises:
        GrammarError: that cannot be done; the error names the place.
    """
    copy: JsonSchema = _copied(schema)
    for place, inner in _all_schemas(copy):
        _rewrite_patterns(place, inner)
        _rewrite_format(inner)
        _rewrite_bounds(place, inner)
        for keyword in ("const", "enum"):
            if keyword in inner and not _is_exact(inner[keyword]):
                raise GrammarError(f"`{keyword}` has an integer beyond 2^53, which cannot be kept exactly", place)
    return copy


def _all_schemas(schema: JsonSchema) -> list[tuple[str, JsonSchema]]:
    """The schema and those inside it, also where only a reference says that something is a schema."""
    found: dict[int, tuple[str, JsonSchema]] = {}
    pending: list[tuple[str, Any]] = [("#", schema)]
    while pending:
        root_place, root = pending.pop()
        if not isinstance(root, dict) or id(root) in found:
            continue
        for place, inner in subschemas(root):
            found[id(inner)] = (root_place + place[1:], inner)
            reference = inner.get("$ref")
            if isinstance(reference, str) and reference.startswith("#/"):
                pending.append((reference, _target(schema, reference)))
    return list(found.values())


def _target(schema: JsonSchema, reference: str) -> Any:
    """What a JSON pointer (RFC 6901) in a URI fragment leads to; None where it leads nowhere."""
    current: Any = schema
    for part in unquote(reference[2:]).split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(current, list) and name.isdecimal() and int(name) < len(current):
            current = current[int(name)]
        else:
            current = current.get(name) if isinstance(current, dict) else None
    return current


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _rewrite_patterns(place: str, schema: JsonSchema) -> None:
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = _safe_pattern(schema["pattern"], place)
    names = schema.get("patternProperties")
    if not isinstance(names, dict):
        return
    renamed = {_safe_pattern(pattern, place): inner for pattern, inner in names.items()}
    if renamed.keys() != names.keys() and schema.get("additionalProperties", True) is not False:
        # A name with U+0000 that one of the patterns means would come under the other properties.
        raise GrammarError(
            "`patternProperties` with negated classes or `\\p` in a pattern needs `additionalProperties: false`", place
        )
    schema["patternProperties"] = renamed


def _safe_pattern(pattern: str, place: str) -> str:
    try:
        return without_nul(pattern)
    except ValueError as error:
        raise GrammarError(f"{error}, in the pattern {pattern[:60]!r}", place) from error


def _rewrite_format(schema: JsonSchema) -> None:
    """The library's own February has 29 days in every year, and its minutes 61 seconds."""
    exact = FORMAT_PATTERNS.get(schema.get("format", ""))
    if exact is None:
        return
    del schema["format"]
    if "pattern" in schema:
        schema["allOf"] = [*schema.get("allOf", ()), {"pattern": exact}]
    else:
        schema["pattern"] = exact


def _rewrite_bounds(place: str, schema: JsonSchema) -> None:
    """Move bounds that the library cannot hold inwards, to the next ones that it can."""
    kinds = schema.get("type")
    are_integers = kinds == "integer" or (isinstance(kinds, list) and "integer" in kinds)
    moved = False
    for keyword in (*_LOWER_BOUNDS, *_UPPER_BOUNDS):
        bound: Any = schema.get(keyword)
        if type(bound) not in (int, float) or abs(bound) < EXACT_INTEGERS:
            continue
        is_lower = keyword in _LOWER_BOUNDS
        if are_integers and (bound > -SMALLEST_INTEGER if is_lower else bound < SMALLEST_INTEGER):
            raise GrammarError(f"`{keyword}` leaves only integers at the ends of 64 bits or beyond", place)
        if type(bound) is int:
            schema[keyword] = _inward(bound, is_lower, keyword, place)
        if is_lower:
            schema[keyword] = max(SMALLEST_INTEGER, schema[keyword])
        moved = moved or schema[keyword] != bound
    lowest, highest = schema.get("minimum"), schema.get("maximum")
    if moved and type(lowest) is int and type(highest) is int and lowest > highest:
        raise GrammarError("`minimum` and `maximum` are too close to each other for integers beyond 2^53", place)


def _inward(bound: int, is_lower: bool, keyword: str, place: str) -> int:
    """The nearest integer inside of the bound that a float holds."""
    try:
        nearest = float(bound)
    except OverflowError as error:
        raise GrammarError(f"`{keyword}` is beyond the range of 64-bit floats", place) from error
    if is_lower:
        return int(nearest if nearest >= bound else math.nextafter(nearest, math.inf))
    return int(nearest if nearest <= bound else math.nextafter(nearest, -math.inf))


def _is_exact(value: Any) -> bool:
    """Whether all integers in a JSON value are ones that floats hold."""
    if isinstance(value, dict):
        return all(map(_is_exact, value.values()))
    if isinstance(value, list):
        return all(map(_is_exact, value))
    return type(value) is not int or abs(value) <= EXACT_INTEGERS or _float_holds(value)


def _float_holds(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False
