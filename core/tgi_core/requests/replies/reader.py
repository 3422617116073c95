"""The engine under all parsers of replies: text that arrives in pieces, read as if it were all there.

A parser is a generator over a ``ReplyReader``. Whatever it asks the reader for either is in the text that has come, or
the generator waits. Decisions depend on the text alone and never on where it was cut, so the events of a reply, joined,
are the same for every way its text may arrive.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TypeVar

from tgi_core.requests.replies.events import Arguments, CallBegun, CallEnded, Content, Event, Reasoning, merge
from tgi_core.requests.replies.markers import Markers, space_start

T = TypeVar("T")
Reading = Generator[None, None, T]
"""A parser, or a part of one, that results in a T; it yields when it needs more text."""

_SPACE = re.compile(r"[ \t\r\n]*")
_NOWHERE = -1


class MalformedError(Exception):
    """The text is not what was expected here."""


class TruncatedError(MalformedError):
    """The text ends before what was expected."""


class ReplyReader:
    """The text of one reply, from the position that has been read to; and the events made of it so far.

    A text that may be a call is kept from its beginning, until ``begin_call`` says that it is one. When ``attempt``
    sees it fail before that, all of it is content.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._kept = _NOWHERE
        """Where the text begins that becomes content if the attempt fails; nothing behind it is thrown away."""
        self._begun = 0
        """Where reading for content goes on then: behind the opening marker."""
        self._passing = _NOWHERE
        """Where the arguments begin that were read and not yet handed out."""
        self._in_call = False
        self._events: list[Event] = []

    def feed(self, text: str) -> None:
        """Append ``text``."""
        if self._kept == _NOWHERE:
            self._text = self._text[self._at :] + text
            self._at = 0
            if self._passing != _NOWHERE:
                self._passing = 0
        else:
            self._text += text

    def end(self) -> None:
        """Nothing follows."""
        self._ended = True

    def take_events(self) -> list[Event]:
        """The events since the last call, neighbours joined."""
        events, self._events = self._events, []
        return merge(events) if len(events) > 1 else events

    # What parsers read with.

    def peek(self) -> Reading[str]:
        """The next character; "" at the end of the reply."""
        while self._at == len(self._text):
            if self._ended:
                return ""
            yield from self._more()
        return self._text[self._at]

    def need(self) -> Reading[str]:
        """The next character.

        Raises:
            TruncatedError: there is none.
        """
        character = yield from self.peek()
        if not character:
            raise TruncatedError
        return character

    def advance(self) -> None:
        """Go behind the character that was peeked at."""
        self._at += 1

    def step_back(self, length: int) -> None:
        """Go in front of the last ``length`` characters, which were read just now."""
        self._at -= length

    def skip_rest(self) -> None:
        """Go behind all that has come."""
        self._at = len(self._text)

    def skip_space(self) -> Reading[None]:
        """Go to the next character that is neither a space nor a line end."""
        yield from self.run(_SPACE)

    def run(self, pattern: re.Pattern[str]) -> Reading[str]:
        """The longest run of the characters that ``pattern``, a repeated class such as ``[a-z]*``, stands for."""
        pieces = []
        while True:
            match = pattern.match(self._text, self._at)
            assert match is not None
            pieces.append(match[0])
            self._at = match.end()
            if self._at < len(self._text) or self._ended:
                return "".join(pieces)
            yield from self._more()

    def accept(self, *literals: str) -> Reading[str]:
        """Go behind the longest of the literals that comes next; returns it, "" for none."""
        longest = max(map(len, literals))
        while True:
            rest = self._text[self._at : self._at + longest]
            found = max((literal for literal in literals if rest.startswith(literal)), key=len, default="")
            undecided = any(len(literal) > len(rest) and literal.startswith(rest) for literal in literals)
            if self._ended or not undecided:
                self._at += len(found)
                return found
            yield from self._more()

    def expect(self, literal: str) -> Reading[None]:
        """Go behind ``literal``.

        Raises:
            MalformedError: something else comes.
            TruncatedError: the reply ends before that is certain.
        """
        if not (yield from self.accept(literal)):
            rest = self._text[self._at : self._at + len(literal)]
            raise TruncatedError if literal.startswith(rest) else MalformedError

    def until(self, markers: Markers) -> Reading[tuple[str, str]]:
        """The text up to the first marker, without the space in front of it, and the marker; goes behind it.

        Raises:
            TruncatedError: no marker comes.
        """
        pieces = []
        while True:
            match = markers.find(self._text, self._at)
            if match is not None:
                pieces.append(self._text[self._at : match.start()])
                self._at = match.end()
                return "".join(pieces).rstrip(), match[0]
            if self._ended:
                raise TruncatedError
            held = markers.held_from(self._text, self._at)
            pieces.append(self._text[self._at : held])
            self._at = held
            yield from self._more()

    # What parsers make of it.

    def content_until(self, markers: Markers) -> Reading[str]:
        """Hand out content up to the first marker, go behind it and return it; "" at the end of the reply."""
        return (yield from self._text_until(Content, markers))

    def reasoning_until(self, markers: Markers) -> Reading[str]:
        """As ``content_until``, for reasoning."""
        return (yield from self._text_until(Reasoning, markers))

    def arguments_until(self, markers: Markers) -> Reading[str]:
        """As ``content_until``, for arguments."""
        return (yield from self._text_until(Arguments, markers))

    def keep(self) -> None:
        """What is read from here on is content if the attempt fails; without effect while something is kept."""
        if self._kept == _NOWHERE:
            self._kept = self._begun = self._at

    def release(self) -> None:
        """What was kept has its place in the reply."""
        self._kept = _NOWHERE

    def rewind(self) -> None:
        """Read again what is kept."""
        if self._kept != _NOWHERE:
            self._at = self._kept
            self.release()

    def go_to(self, position: int) -> None:
        """Go to a ``position`` of what is kept."""
        self._at = position

    def kept_text(self, start: int) -> str:
        """The text from ``start``, a ``position`` of what is kept, to here."""
        return self._text[start : self._at]

    @property
    def position(self) -> int:
        """Where reading stands; valid as long as something is kept."""
        return self._at

    def begin_call(self, name: str) -> None:
        """What is kept is a call."""
        self.release()
        self._in_call = True
        self._events.append(CallBegun(name))

    def arguments(self, text: str) -> None:
        """A piece of the call's arguments."""
        self._events.append(Arguments(text))

    def pass_arguments(self, value: Reading[None]) -> Reading[None]:
        """All that ``value`` reads are arguments, handed out as they come."""
        self._passing = self._at
        yield from value
        self._flush()
        self._passing = _NOWHERE

    @property
    def is_passing(self) -> bool:
        """Whether what is read is handed out as arguments."""
        return self._passing != _NOWHERE

    def replace(self, text: str) -> None:
        """Read ``text`` instead of the next character."""
        self._text = self._text[: self._at] + text + self._text[self._at + 1 :]
        self._at += len(text)

    def end_call(self) -> None:
        """The call is complete."""
        self._in_call = False
        self._events.append(CallEnded())

    def attempt(self, calls: Reading[None]) -> Reading[bool]:
        """Read ``calls``; where they fail, the call that has begun ends and everything not handed out is content.

        Returns:
            Whether they were well-formed.
        """
        try:
            yield from calls
        except MalformedError as error:
            self.give_up(is_cut=isinstance(error, TruncatedError))
            return False
        self.release()
        return True

    def give_up(self, *, is_cut: bool) -> None:
        """Read on for content, with what is kept; ``is_cut``: what has come of the arguments is theirs."""
        if self._passing != _NOWHERE:
            if is_cut:
                self._at = len(self._text)
            self._flush()
            self._passing = _NOWHERE
        if self._in_call:
            self.end_call()
        if self._kept != _NOWHERE:
            if self._begun > self._kept:
                self._events.append(Content(self._text[self._kept : self._begun]))
            self._at = self._begun
            self.release()

    def _more(self) -> Reading[None]:
        self._flush()
        yield

    def _flush(self) -> None:
        if self._passing != _NOWHERE and self._at > self._passing:
            self._events.append(Arguments(self._text[self._passing : self._at]))
            self._passing = self._at

    def _text_until(self, kind: type[Content] | type[Reasoning] | type[Arguments], markers: Markers) -> Reading[str]:
        while True:
            match = markers.find(self._text, self._at)
            if match is not None:
                end = space_start(self._text, self._at, match.start())
            elif self._ended:
                end = len(self._text)
            else:
                end = markers.held_from(self._text, self._at)
            if end > self._at:
                self._events.append(kind(self._text[self._at : end]))
            self._at = end
            if match is not None:
                if kind is Content:
                    self._kept = end
                self._at = self._begun = match.end()
                return match[0]
            if self._ended:
                return ""
            yield from self._more()
