"""Calls written as JSON objects with a name and arguments, one or a list of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tgi_core.requests.replies import MalformedError, Reading, ReplyReader
from tgi_core.requests.replies.json_text import read_separator, read_string, read_value

_NAMES = ("name", "function", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
_LABELS = ("type", "id", "tool_call_id")


@dataclass(slots=True)
class _Call:
    """What is known of the call that is being read.

    Attributes:
        name: the function's; None until it is read.
        held: arguments that came before the name.
        has_begun: whether it was handed out as a call.
    """

    name: str | None = None
    held: str | None = None
    has_begun: bool = False


def read_listed(reader: ReplyReader, read_call: Callable[[], Reading[None]]) -> Reading[None]:
    """Read calls separated by commas up to the end of their list; its bracket has been read."""
    while True:
        yield from reader.skip_space()
        reader.keep()
        yield from read_call()
        if (yield from read_separator(reader, "]")) == "]":
            return


def read_json_calls(reader: ReplyReader, known: frozenset[str] | None) -> Reading[None]:
    """Read an object, several of them with ``;`` or space between, or a list.

    ``known``: the names of functions, for a place where JSON may also be the answer itself: an object is a call there
    only if it calls one of them.

    Raises:
        MalformedError: it is something else.
        TruncatedError: the reply ends inside it.
    """
    yield from reader.skip_space()
    if (yield from reader.accept("[")):
        return (yield from read_listed(reader, lambda: read_json_call(reader, known)))
    while True:
        yield from read_json_call(reader, known)
        yield from reader.skip_space()
        yield from reader.accept(";")
        yield from reader.skip_space()
        if (yield from reader.peek()) != "{":
            return
        reader.keep()


def read_json_call(reader: ReplyReader, known: frozenset[str] | None) -> Reading[None]:
    """Read ``{"name": NAME, "arguments": {…}}``, under any of the keys in use, in either order; arguments may be left
    out, null, or an object in a string. ``{"type": "function", "function": {…}}`` may be around it.
    """
    call = _Call()
    yield from _read_members(reader, call, known)
    if not call.has_begun:
        if call.name is None:
            raise MalformedError
        reader.begin_call(call.name)
        reader.arguments("{}" if call.held is None else call.held)
    reader.end_call()


def _read_members(reader: ReplyReader, call: _Call, known: frozenset[str] | None) -> Reading[None]:
    yield from reader.expect("{")
    while True:
        yield from reader.skip_space()
        key = yield from read_string(reader)
        if known is not None and key not in (*_NAMES, *_ARGUMENTS, *_LABELS):
            raise MalformedError
        yield from reader.skip_space()
        yield from reader.expect(":")
        yield from reader.skip_space()
        first = yield from reader.need()
        if key in _NAMES and call.name is None and first == '"':
            call.name = yield from _read_text(reader)
            if not call.name or (known is not None and call.name not in known):
                raise MalformedError
        elif key == "function" and first == "{" and not call.has_begun:
            yield from _read_members(reader, call, known)
        elif key in _ARGUMENTS and call.held is None and not call.has_begun:
            yield from _read_arguments(reader, call, first)
        else:
            yield from read_value(reader)
        if (yield from read_separator(reader, "}")) == "}":
            return


def _read_arguments(reader: ReplyReader, call: _Call, first: str) -> Reading[None]:
    if first == "{" and call.name is not None:
        call.has_begun = True
        reader.begin_call(call.name)
        yield from reader.pass_arguments(read_value(reader))
        return
    start = reader.position
    if first == "{":
        yield from read_value(reader)
        call.held = reader.kept_text(start)
    elif first == '"':
        call.held = yield from _read_text(reader)
    else:
        yield from reader.expect("null")
        call.held = "{}"


def _read_text(reader: ReplyReader) -> Reading[str]:
    text = yield from read_string(reader)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MalformedError from error
    return text
