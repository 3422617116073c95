"""Calls written as Python: ``[f(a=1, b="x"), g()]``."""

from __future__ import annotations

import ast
import json
import re
import warnings
from typing import NoReturn

from tgi_core.requests.replies import MalformedError, Reading, ReplyReader
from tgi_core.requests.replies.json_text import read_separator
from tgi_core.requests.tools.json_calls import read_listed

_NAME = re.compile(r"[\w.\-]*")
_PLAIN = re.compile(r"[^'\"()\[\]{},]*")
_INSIDE = {"'": re.compile(r"[^'\\]*"), '"': re.compile(r'[^"\\]*')}
_OPENING, _CLOSING = "([{", ")]}"


def read_python_calls(reader: ReplyReader, known: frozenset[str] | None) -> Reading[None]:
    """Read a list of calls, or calls below each other, each perhaps inside ``print``.

    ``known``: the functions that may be called, for a place where the text may also be the answer itself.

    Raises:
        MalformedError: it is something else, or has arguments that are no literals with a name.
        TruncatedError: the reply ends inside it.
    """
    yield from reader.skip_space()
    if (yield from reader.accept("[")):
        return (yield from read_listed(reader, lambda: read_python_call(reader, known)))
    while True:
        is_printed = yield from reader.accept("print(")
        yield from read_python_call(reader, known)
        yield from reader.skip_space()
        if is_printed:
            yield from reader.expect(")")
            yield from reader.skip_space()
        following = yield from reader.peek()
        if not (following.isalpha() or following == "_"):
            return
        reader.keep()


def read_python_call(reader: ReplyReader, known: frozenset[str] | None) -> Reading[None]:
    """Read one call; each argument is handed out as JSON when it is complete."""
    name = yield from reader.run(_NAME)
    if not name or name[0].isdigit():
        yield from reader.need()
        raise MalformedError
    yield from reader.skip_space()
    yield from reader.expect("(")
    if known is not None and name not in known:
        raise MalformedError
    has_begun = False
    while True:
        yield from reader.skip_space()
        if (yield from reader.accept(")")):
            break
        reader.keep()
        key = yield from reader.run(_NAME)
        yield from reader.skip_space()
        yield from reader.expect("=")
        if not key:
            raise MalformedError
        value = _as_json((yield from _expression(reader)))
        if not has_begun:
            has_begun = True
            reader.begin_call(name)
            reader.arguments("{")
        else:
            reader.release()
            reader.arguments(", ")
        reader.arguments(f"{json.dumps(key, ensure_ascii=False)}: {value}")
        if (yield from read_separator(reader, ")")) == ")":
            break
    if not has_begun:
        reader.begin_call(name)
        reader.arguments("{")
    reader.arguments("}")
    reader.end_call()


def _expression(reader: ReplyReader) -> Reading[str]:
    """The text up to the comma or parenthesis that ends an argument."""
    pieces = []
    depth = 0
    while True:
        pieces.append((yield from reader.run(_PLAIN)))
        character = yield from reader.need()
        if depth == 0 and character in ",)":
            return "".join(pieces)
        if character in "'\"":
            pieces.append((yield from _quoted(reader, character)))
            continue
        reader.advance()
        pieces.append(character)
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        if depth < 0:
            raise MalformedError


def _quoted(reader: ReplyReader, quote: str) -> Reading[str]:
    pieces = [(yield from reader.accept(quote * 3, quote))]
    closing = pieces[0]
    while True:
        pieces.append((yield from reader.run(_INSIDE[quote])))
        if (yield from reader.need()) == "\\":
            reader.advance()
            pieces.append("\\" + (yield from reader.need()))
            reader.advance()
        elif (yield from reader.accept(closing)):
            pieces.append(closing)
            return "".join(pieces)
        else:
            reader.advance()
            pieces.append(quote)


def _as_json(text: str) -> str:
    """A literal of Python, or of JSON, as JSON."""
    text = text.strip()
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        try:
            with warnings.catch_warnings(action="ignore"):  # about unknown escapes
                value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise MalformedError from error
    try:
        encoded = json.dumps(value, ensure_ascii=False, allow_nan=False)
        encoded.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedError from error
    return encoded


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
