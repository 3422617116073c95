"""What a constrained output must match, as requests, frames and engines pass it on."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class GrammarKind(StrEnum):
    """How ``Grammar.source`` is to be read."""

    JSON_SCHEMA = "json_schema"
    """A JSON schema, as JSON; "{}" is any JSON value."""
    REGEX = "regex"
    """A regular expression that the whole output matches."""
    EBNF = "ebnf"
    """A context-free grammar; its dialect is the engine's."""
    CHOICE = "choice"
    """A JSON list of strings, one of which is the output."""


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """A constraint on the output of one request; equal constraints compare equal."""

    kind: GrammarKind
    source: str
