"""A reply's text to its events: what the model thinks, what it says, what it calls."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable

import msgspec

from tgi_core.requests.replies.events import Arguments, CallBegun, CallEnded, Content, Event, Reasoning
from tgi_core.requests.replies.markers import Markers
from tgi_core.requests.replies.reader import Reading, ReplyReader

logger = logging.getLogger(__name__)

_NO_MARKERS = Markers(())


class ReplyContext(msgspec.Struct, frozen=True):
    """What a parser knows of the request.

    Attributes:
        prompt: the rendered conversation; the reply goes on where it ends.
        tool_names: the functions that may be called; empty when there are none.
    """

    prompt: str = ""
    tool_names: frozenset[str] = frozenset()


class ReplyPartParser(ABC):
    """What reads a part of replies: their reasoning, or everything behind it. Stateless; one serves all requests."""

    special_tokens: frozenset[str] = frozenset()
    """Texts that ``read`` looks for and that a tokenizer may have as special tokens; all other special tokens are left
    out of the text that it sees."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What users choose it by."""

    @abstractmethod
    def suits(self, template: str, model_type: str) -> bool:
        """Whether it is made for a model with this chat template and ``model_type``."""

    @abstractmethod
    def read(self, reader: ReplyReader, context: ReplyContext) -> Reading[None]:
        """Read a part of a reply, or all of it; what it leaves is read by the next parser, or is content."""


class ReplyParser:
    """One reply, parsed as it arrives.

    Attributes:
        num_calls: calls that have begun.
        has_cut_call: one of them ended before its arguments were complete.
    """

    def __init__(
        self,
        parts: Iterable[ReplyPartParser],
        context: ReplyContext,
        *,
        keep_reasoning: bool = True,
        max_calls: int | None = None,
    ) -> None:
        """``parts`` read one after the other; calls beyond ``max_calls`` are left out, reasoning unless it is kept."""
        parts = list(parts)
        self._special_tokens = frozenset[str]().union(*(part.special_tokens for part in parts))
        self._reader = ReplyReader()
        self._reading = _read_parts(parts, self._reader, context)
        self._keep_reasoning = keep_reasoning
        self._max_calls = max_calls
        self._in_surplus_call = False
        self._arguments: list[str] = []
        self.num_calls = 0
        self.has_cut_call = False
        self._step()

    def push(self, text: str, special: bool = False) -> list[Event]:
        """The events that ``text`` completes; ``special``: it is that of a special token."""
        if not text or (special and text not in self._special_tokens):
            return []
        self._reader.feed(text)
        return self._step()

    def finish(self) -> list[Event]:
        """The reply is over: what was held back."""
        self._reader.end()
        return self._step()

    def _step(self) -> list[Event]:
        try:
            next(self._reading, None)
        except Exception:  # a parser may come from a plugin; its failure must not cost the reply
            logger.exception("A parser of replies has failed; the rest of the reply is content.")
            self._reader.give_up(is_cut=False)
            self._reading = _read_parts([], self._reader, ReplyContext())
            next(self._reading, None)
        return [wanted for event in self._reader.take_events() if (wanted := self._wanted(event)) is not None]

    def _wanted(self, event: Event) -> Event | None:
        """The event as the reply has it; None where it is left out."""
        match event:
            case Reasoning():
                return event if self._keep_reasoning else None
            case CallBegun():
                self._in_surplus_call = self.num_calls == self._max_calls
                self.num_calls += not self._in_surplus_call
                self._arguments.clear()
            case Content():
                return event
        if self._in_surplus_call:
            return None
        if isinstance(event, Arguments):
            self._arguments.append(event.text)
        elif isinstance(event, CallEnded):
            # Readers of calls differ in what they notice of a cut, so the arguments themselves decide.
            event = CallEnded(_is_object("".join(self._arguments)))
            self.has_cut_call |= not event.is_complete
        return event


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _read_parts(parts: list[ReplyPartParser], reader: ReplyReader, context: ReplyContext) -> Reading[None]:
    for part in parts:
        yield from part.read(reader, context)
        reader.release()
    yield from reader.content_until(_NO_MARKERS)


class ParsedCall(msgspec.Struct, frozen=True):
    """A call: the function's name and its arguments as JSON text, which is incomplete when the reply was cut off."""

    name: str
    arguments: str


class ParsedReply(msgspec.Struct, frozen=True):
    """A whole reply."""

    content: str
    reasoning: str
    calls: list[ParsedCall]


def parse_reply(parser: ReplyParser, pieces: Iterable[tuple[str, bool]]) -> ParsedReply:
    """All of a reply at once; ``pieces`` are texts, each with whether it is that of a special token."""
    events = [event for text, special in pieces for event in parser.push(text, special)]
    events += parser.finish()
    return collect_reply(events)


def collect_reply(events: Iterable[Event]) -> ParsedReply:
    """The reply that ``events`` make up."""
    content, reasoning = [], []
    calls: list[tuple[str, list[str]]] = []
    for event in events:
        match event:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallBegun(name):
                calls.append((name, []))
            case Arguments(text):
                calls[-1][1].append(text)
    parsed = [ParsedCall(name, "".join(pieces)) for name, pieces in calls]
    return ParsedReply("".join(content), "".join(reasoning), parsed)
