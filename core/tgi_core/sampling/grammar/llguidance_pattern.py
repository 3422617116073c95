"""Patterns of JSON strings, kept from matching more than they say."""

from __future__ import annotations

import re

_UNIT = re.compile(
    r"""
    (?P<nul>\x00|\\(?:x00|u0000|U0{8}|[xuU]\{0+\}|0))
    | (?P<property>\\[pP](?:\{[^}]*\}|[^{]))
    | \\.
    | \(\?P?<[^>=!]*>               # a group's name may hold brackets
    | (?P<flags>\(\?[a-zA-Z]*x)     # blanks and comments are not read here
    | (?P<open>\[)
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_CLASS_OPENS = re.compile(r"\[\^?-*\]?")
"""A class begins; a bracket right there stands for itself."""
_POSIX = re.compile(r"\[:\^?[a-z]+:\]")
_PLAIN_CLASS = re.compile(
    r"""
    \[\^?
    (?: [0-9]-[0-9] | [a-z]-[a-z] | [A-Z]-[A-Z]
      | [\ !#-,./0-9:-@A-Z_`a-z{|}~] | [^\x00-\x7f]
      | \\[dwstnrfv.\-\[\]/^$|?*+(){}]
      | -(?=\])
    )+
    \]
    """,
    re.VERBOSE,
)
"""Most classes: without U+0000 or, if negated, with both the quotation mark and the backslash."""
_PLAIN_PROPERTY = re.compile(r"\\p(?:[LMNPSZ]|\{[LMNPSZ][a-z]?\})|\\P(?:[LMNSZ]|\{[LMNSZ][a-z]?\})")
"""The same of general categories."""


def without_nul(pattern: str) -> str:
    """A pattern that matches what ``pattern`` does, but for texts with U+0000 in places that it describes.

    In a JSON string control characters are escapes. For a class that holds all of them the library allows every
    escape, so that ``[^"]`` lets ``\\"`` through: a character it excludes. With one of them missing it is exact.

    Raises:
        ValueError: the pattern cannot be read.
    """
    pieces = []
    position = 0
    while position < len(pattern):
        unit = _UNIT.match(pattern, position)
        assert unit is not None, "any character is a unit"
        end = unit.end()
        text = unit[0]
        if unit["flags"] is not None:
            raise ValueError("the flag `x` is not supported")
        if unit["nul"] is not None:
            text = r"[^\s\S]"
        elif unit["property"] is not None and _PLAIN_PROPERTY.fullmatch(text) is None:
            text = rf"[{text}--\x00]"
        elif unit["open"] is not None:
            end = _class_end(pattern, position)
            text = pattern[position:end]
            if _PLAIN_CLASS.fullmatch(text) is None:
                text = rf"[{text}--\x00]"
        pieces.append(text)
        position = end
    return "".join(pieces)


def _class_end(pattern: str, start: int) -> int:
    """Where the class that begins at ``start`` is over; classes may be nested."""
    depth = 0
    position = start
    while position < len(pattern):
        named = _POSIX.match(pattern, position) if depth else None
        opened = _CLASS_OPENS.match(pattern, position)
        if named is not None:
            position = named.end()
        elif opened is not None:
            # `[-]` is a class of one hyphen: behind hyphens a bracket ends it.
            position = opened.end() - (1 if opened[0].endswith("-]") else 0)
            depth += 1
        elif pattern[position] == "]":
            position += 1
            depth -= 1
            if not depth:
                return position
        else:
            position += 2 if pattern[position] == "\\" else 1
    raise ValueError("a character class is not closed")
