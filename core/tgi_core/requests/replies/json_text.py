"""JSON in a reply, read piece by piece (RFC 8259)."""

from __future__ import annotations

import json
import re

from tgi_core.requests.replies.reader import MalformedError, Reading, ReplyReader, TruncatedError

MAX_DEPTH = 100
"""Objects and arrays inside each other; the reader recurses."""

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_WORD = re.compile(r"[A-Za-z0-9+.\-]*")
_VALUE = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null", re.ASCII)
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def read_value(reader: ReplyReader, depth: int = 0) -> Reading[None]:
    """Go behind one JSON value.

    Raises:
        MalformedError: it is none.
        TruncatedError: the reply ends inside it.
    """
    yield from reader.skip_space()
    character = yield from reader.need()
    if depth >= MAX_DEPTH:
        raise MalformedError
    if character == "{":
        yield from _members(reader, depth)
    elif character == "[":
        yield from _items(reader, depth)
    elif character == '"':
        yield from read_string(reader)
    else:
        word = yield from reader.run(_WORD)
        if not _VALUE.fullmatch(word):
            raise MalformedError if word == "" or (yield from reader.peek()) else TruncatedError


def read_string(reader: ReplyReader) -> Reading[str]:
    """Go behind one JSON string and return its value.

    In arguments that are handed out, line ends and the like, which models forget to escape, are escaped.

    Raises:
        MalformedError: it is none.
        TruncatedError: the reply ends inside it.
    """
    yield from reader.expect('"')
    pieces = []
    while True:
        pieces.append((yield from reader.run(_PLAIN)))
        character = yield from reader.need()
        if character == '"':
            reader.advance()
            break
        if character == "\\":
            reader.advance()
            pieces.append("\\" + (yield from reader.need()))
            reader.advance()
        elif reader.is_passing:
            escape = _ESCAPES.get(character, f"\\u{ord(character):04x}")
            reader.replace(escape)
            pieces.append(escape)
        else:
            raise MalformedError
    try:
        return str(json.loads(f'"{"".join(pieces)}"'))
    except ValueError as error:
        raise MalformedError from error


def _members(reader: ReplyReader, depth: int) -> Reading[None]:
    reader.advance()
    yield from reader.skip_space()
    if (yield from reader.accept("}")):
        return
    while True:
        yield from reader.skip_space()
        yield from read_string(reader)
        yield from reader.skip_space()
        yield from reader.expect(":")
        yield from read_value(reader, depth + 1)
        if (yield from read_separator(reader, "}")) == "}":
            return


def _items(reader: ReplyReader, depth: int) -> Reading[None]:
    reader.advance()
    yield from reader.skip_space()
    if (yield from reader.accept("]")):
        return
    while True:
        yield from read_value(reader, depth + 1)
        if (yield from read_separator(reader, "]")) == "]":
            return


def read_separator(reader: ReplyReader, closing: str) -> Reading[str]:
    """Go behind a comma or ``closing`` and return which it was.

    Raises:
        MalformedError: it is neither.
        TruncatedError: the reply ends.
    """
    yield from reader.skip_space()
    found = yield from reader.accept(",", closing)
    if not found:
        yield from reader.need()
        raise MalformedError
    return found
