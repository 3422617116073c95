"""The ways a request asks for structured output, TGI's, OpenAI's and vLLM's, each read as a ``Grammar``.

Only the shape is checked here, quickly and on the event loop; whether the schema or expression can be served is for
``sampling.grammar.checker`` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tgi_core.errors import ValidationError
from tgi_core.sampling.grammar import Grammar, GrammarKind

MAX_GRAMMAR_BYTES = 1 << 20
"""UTF-8 length of a schema, expression, grammar or list of choices."""

ANY_OBJECT = '{"type":"object"}'

_TYPES = ("json", "json_object", "json_schema", "regex", "ebnf", "choice", "text")
_STRUCTURED_OUTPUTS = ("json", "json_object", "regex", "choice", "grammar")


def read_grammar(name: str, value: Mapping[str, Any] | None) -> Grammar | None:
    """The constraint in TGI's ``grammar`` or OpenAI's ``response_format``; both fields take the shapes of both.

    ``{"type": "json" | "json_object"}`` with a schema in ``value`` or ``schema``, or without one for any object;
    ``{"type": "json_schema"}`` with ``{"schema": ...}`` in ``json_schema`` or ``value``; ``{"type": "regex"}`` and
    ``{"type": "ebnf"}`` with a string in ``value``; ``{"type": "choice"}`` with a list of strings; ``{"type": "text"}``
    for none. A schema is an object or a string that holds one as JSON.

    Raises:
        ValidationError: it is none of these; the message names the place below ``name``.
    """
    if value is None:
        return None
    kind = value.get("type")
    given = value.get("value")
    match kind:
        case "text":
            return None
        case "json" | "json_object":
            other = value.get("schema")
            if given is not None and other is not None:
                raise ValidationError(f"Only one schema can be given. Given: `{name}.value` and `{name}.schema`")
            place, schema = (f"{name}.value", given) if given is not None else (f"{name}.schema", other)
            return Grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT) if schema is None else _schema(place, schema)
        case "json_schema":
            return _nested_schema(name, value)
        case "regex":
            return _text(GrammarKind.REGEX, f"{name}.value", given)
        case "ebnf":
            return _text(GrammarKind.EBNF, f"{name}.value", given)
        case "choice":
            return _choice(f"{name}.value", given)
    known = ", ".join(f"`{known}`" for known in _TYPES)
    raise ValidationError(f"`{name}.type` must be one of {known}. Given: {_shown(kind)}")


def read_structured_outputs(name: str, value: Mapping[str, Any] | None) -> Grammar | None:
    """The constraint in vLLM's ``structured_outputs``: exactly one of ``json``, ``json_object``, ``regex``,
    ``choice``, ``grammar``.

    Raises:
        ValidationError: it has none or several of them, or one of the wrong type.
    """
    if value is None:
        return None
    unknown = [key for key, inner in value.items() if key not in _STRUCTURED_OUTPUTS and inner not in (None, False)]
    if unknown:
        known = ", ".join(f"`{known}`" for known in _STRUCTURED_OUTPUTS)
        raise ValidationError(f"`{name}` takes one of {known}. Given: `{unknown[0]}`")
    json_object = value.get("json_object")
    if json_object not in (None, False, True):
        raise ValidationError(f"`{name}.json_object` must be true or false. Given: {_shown(json_object)}")
    found = {
        f"{name}.json": read_guided_json(f"{name}.json", value.get("json")),
        f"{name}.json_object": Grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT) if json_object else None,
        f"{name}.regex": read_guided_regex(f"{name}.regex", value.get("regex")),
        f"{name}.choice": read_guided_choice(f"{name}.choice", value.get("choice")),
        f"{name}.grammar": read_guided_grammar(f"{name}.grammar", value.get("grammar")),
    }
    grammar = only_grammar(found)
    if grammar is None:
        known = ", ".join(f"`{known}`" for known in _STRUCTURED_OUTPUTS)
        raise ValidationError(f"`{name}` takes one of {known}. Given: none of them")
    return grammar


def read_guided_json(name: str, value: Any) -> Grammar | None:
    """A JSON schema, as an object or as a string that holds one; None for none. Raises ValidationError."""
    return None if value is None else _schema(name, value)


def read_guided_regex(name: str, value: Any) -> Grammar | None:
    """A regular expression; None for none. Raises ValidationError."""
    return None if value is None else _text(GrammarKind.REGEX, name, value)


def read_guided_choice(name: str, value: Any) -> Grammar | None:
    """A list of strings, one of which the output must be; None for none. Raises ValidationError."""
    return None if value is None else _choice(name, value)


def read_guided_grammar(name: str, value: Any) -> Grammar | None:
    """A context-free grammar in the engine's dialect; None for none. Raises ValidationError."""
    return None if value is None else _text(GrammarKind.EBNF, name, value)


def only_grammar(found: Mapping[str, Grammar | None]) -> Grammar | None:
    """The one constraint among those of a request's fields, by the fields' names; None when there is none.

    Raises:
        ValidationError: there are several.
    """
    given = [(name, grammar) for name, grammar in found.items() if grammar is not None]
    if len(given) > 1:
        names = " and ".join(f"`{name}`" for name, _ in given)
        raise ValidationError(f"Only one constraint can be given. Given: {names}")
    return given[0][1] if given else None


def _nested_schema(name: str, value: Mapping[str, Any]) -> Grammar:
    key = "json_schema" if value.get("json_schema") is not None else "value"
    holder = value.get(key)
    if not isinstance(holder, dict):
        raise ValidationError(f"`{name}.json_schema` must be an object with a `schema`. Given: {_shown(holder)}")
    if holder.get("schema") is None:
        raise ValidationError(f"`{name}.{key}.schema` is missing")
    return _schema(f"{name}.{key}.schema", holder["schema"])


def _schema(place: str, value: Any) -> Grammar:
    if isinstance(value, str):
        _check_size(place, value)
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ValidationError(f"`{place}` is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValidationError(f"`{place}` must be a JSON schema: an object. Given: {_shown(value)}")
    try:
        source = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValidationError(f"`{place}` cannot be read: {error}") from error
    _check_size(place, source)
    return Grammar(GrammarKind.JSON_SCHEMA, source)


def _text(kind: GrammarKind, place: str, value: Any) -> Grammar:
    if not isinstance(value, str) or not value:
        raise ValidationError(f"`{place}` must be a string that is not empty. Given: {_shown(value)}")
    _check_size(place, value)
    return Grammar(kind, value)


def _choice(place: str, value: Any) -> Grammar:
    if not isinstance(value, list) or not value or not all(isinstance(option, str) and option for option in value):
        raise ValidationError(f"`{place}` must be a list of one or more strings, none empty. Given: {_shown(value)}")
    try:
        source = msgspec.json.encode(list(dict.fromkeys(value))).decode()
    except UnicodeError as error:
        raise ValidationError(f"`{place}` must be valid Unicode: {error}") from error
    _check_size(place, source)
    return Grammar(GrammarKind.CHOICE, source)


def _check_size(place: str, text: str) -> None:
    if len(text) > MAX_GRAMMAR_BYTES:
        raise ValidationError(f"`{place}` must have at most {MAX_GRAMMAR_BYTES} bytes. Given: {len(text)} characters")
    try:
        num_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise ValidationError(f"`{place}` must be valid Unicode: {error}") from error
    if num_bytes > MAX_GRAMMAR_BYTES:
        raise ValidationError(f"`{place}` must have at most {MAX_GRAMMAR_BYTES} bytes. Given: {num_bytes}")


def _shown(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
