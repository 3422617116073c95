"""Reasoning between tags at the beginning of a reply, or in front of a closing tag when the prompt has opened it."""

from __future__ import annotations

from tgi_core.requests.reasoning.parser import ReasoningParser
from tgi_core.requests.replies import Markers, Reading, ReplyContext, ReplyReader


class TaggedReasoningParser(ReasoningParser):
    """Reasoning between ``opening`` and ``closing``; the tags and the white space around them are dropped."""

    def __init__(
        self, name: str, opening: str, closing: str, *, hints: tuple[str, ...] = (), is_assumed: bool = False
    ) -> None:
        """Describe a family.

        Args:
            name: what users choose it by.
            opening: tag in front of the reasoning.
            closing: tag behind it.
            hints: texts, each of which in a chat template tells the family.
            is_assumed: a reply begins with reasoning even if nothing opens it, unless the prompt has closed it.
        """
        self._name = name
        self._opening = opening
        self._closing = closing
        self._end = Markers((closing,))
        self._hints = hints
        self._is_assumed = is_assumed
        self.special_tokens = frozenset((opening, closing))

    @property
    def name(self) -> str:
        return self._name

    def suits(self, template: str, model_type: str) -> bool:  # noqa: ARG002  # templates tell
        return any(hint in template for hint in self._hints)

    def open_end(self, prompt: str) -> str | None:
        end = prompt.rstrip()
        is_open = end.endswith(self._opening) or (self._is_assumed and not end.endswith(self._closing))
        return self._closing if is_open else None

    def read(self, reader: ReplyReader, context: ReplyContext) -> Reading[None]:
        """Read the reasoning, if the reply begins with it."""
        reader.keep()
        yield from reader.skip_space()
        if not (yield from reader.accept(self._opening)) and self.open_end(context.prompt) is None:
            reader.rewind()
            return
        reader.release()
        yield from reader.skip_space()
        yield from reader.reasoning_until(self._end)
        yield from reader.skip_space()
