"""Families whose calls stand between markers, or are the whole reply: each is an entry of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tgi_core.requests.replies import Markers, Reading, ReplyContext, ReplyReader
from tgi_core.requests.tools.parser import CallForm, ToolParser

ReadCalls = Callable[[ReplyReader, frozenset[str] | None], Reading[None]]
"""Reads calls; the names of functions are given where the text may also be the answer itself."""


class MarkedToolParser(ToolParser):
    """Calls between an opening and a closing marker, as often as they come; and calls that a reply begins with."""

    def __init__(
        self,
        name: str,
        calls: ReadCalls,
        *,
        markers: Mapping[str, str],
        unmarked: str = "",
        form: CallForm | None = None,
        hints: tuple[str, ...] = (),
        model_types: tuple[str, ...] = (),
    ) -> None:
        """Describe a family.

        Args:
            name: what users choose it by.
            calls: reads what stands between the markers.
            markers: closing markers by the opening ones; "" for none.
            unmarked: characters; a reply that begins with one of them may be nothing but calls.
            form: how the family writes calls.
            hints: texts, each of which in a chat template tells the family.
            model_types: models of the family.
        """
        self._name = name
        self._calls = calls
        self._closing = dict(markers)
        self._markers = Markers(tuple(markers))
        self._unmarked = unmarked
        self._form = form
        self._hints = hints
        self._model_types = model_types
        self.special_tokens = frozenset(marker for pair in markers.items() for marker in pair if marker)

    @property
    def name(self) -> str:
        return self._name

    @property
    def form(self) -> CallForm | None:
        return self._form

    def suits(self, template: str, model_type: str) -> bool:
        return model_type in self._model_types or any(hint in template for hint in self._hints)

    def read(self, reader: ReplyReader, context: ReplyContext) -> Reading[None]:
        """Read the whole reply."""
        if self._unmarked:
            yield from self._read_unmarked(reader, context.tool_names)
        while marker := (yield from reader.content_until(self._markers)):
            # A fence is how answers show code too, so there only functions that exist are called.
            known = context.tool_names if marker.startswith("```") else None
            yield from reader.attempt(self._between(reader, known, self._closing[marker]))

    def _read_unmarked(self, reader: ReplyReader, known: frozenset[str]) -> Reading[None]:
        reader.keep()
        yield from reader.skip_space()
        first = yield from reader.peek()
        if not first or first not in self._unmarked:
            reader.rewind()
        elif (yield from reader.attempt(self._calls(reader, known))):
            yield from reader.skip_space()

    def _between(self, reader: ReplyReader, known: frozenset[str] | None, closing: str) -> Reading[None]:
        yield from self._calls(reader, known)
        yield from reader.skip_space()
        if closing:
            yield from reader.accept(closing)
            yield from reader.skip_space()
