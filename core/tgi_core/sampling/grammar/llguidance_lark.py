"""Lark grammars on their way to llguidance: special tokens by id, and the JSON schemas inside."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tgi_core.sampling.grammar.engine import GrammarError
from tgi_core.sampling.grammar.schema import JsonSchema

_LEXEME = re.compile(
    r"""
    "(?:\\.|[^"\\\n])*"             # a string
    | (?:\#|//)[^\n]*               # a comment
    | /(?:\\.|[^/\\])++/            # a regular expression
    | %json\s*(?P<json>(?=\{))      # a schema begins
    | (?P<special><[^<>\s]+>)       # a special token
    """,
    re.VERBOSE | re.DOTALL,
)
"""What may hold a name in pointed brackets, or is one."""


def rewrite_lark(
    source: str, special_ids: Mapping[str, int], rewrite_schema: Callable[[JsonSchema], JsonSchema]
) -> str:
    """The grammar with its special tokens named by id, as ``<[2]>``, and each schema behind ``%json`` rewritten.

    Raises:
        GrammarError: a special token that does not exist.
    """
    pieces = []
    end = 0
    for start, stop, found in _found(source):
        pieces.append(source[end:start])
        pieces.append(_by_id(found, special_ids) if isinstance(found, str) else json.dumps(rewrite_schema(found)))
        end = stop
    return "".join([*pieces, source[end:]])


def schemas_in(source: str) -> Iterator[JsonSchema]:
    """The schemas behind ``%json``."""
    return (found for _, _, found in _found(source) if not isinstance(found, str))


def _found(source: str) -> Iterator[tuple[int, int, str | JsonSchema]]:
    """(start, end, text) of each special token and (start, end, value) of each schema; what is not JSON is left out."""
    decoder = json.JSONDecoder()
    position = 0
    while (match := _LEXEME.search(source, position)) is not None:
        position = match.end()
        if match["special"] is not None:
            yield match.start(), match.end(), match["special"]
        elif match["json"] is not None:
            try:
                schema: Any
                schema, position = decoder.raw_decode(source, match.end())
            except (ValueError, RecursionError):
                continue
            yield match.end(), position, schema


def _by_id(name: str, special_ids: Mapping[str, int]) -> str:
    if name.startswith("<["):
        return name
    token_id = special_ids.get(name)
    if token_id is None:
        raise GrammarError(f"the tokenizer has no special token `{name}`")
    return f"<[{token_id}]>"
