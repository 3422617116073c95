"""DeepSeek V3, R1 and V3.1: calls between marks of their own, with the name in front of the arguments."""

from __future__ import annotations

import re

from tgi_core.requests.replies import MalformedError, Markers, Reading, ReplyContext, ReplyReader, read_value
from tgi_core.requests.tools.parser import ARGUMENTS, NAME, CallForm, ToolParser

_BEGIN_ALL, _END_ALL = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_BEGINS = Markers((_BEGIN_ALL,))
_SEPARATORS = Markers((_SEPARATOR,))
_LINE = re.compile(r"[^\n]*")


class DeepSeekToolParser(ToolParser):
    """Reads both forms; ``is_fenced`` says that the model writes the older one, with the arguments in a fence."""

    special_tokens = frozenset((_BEGIN_ALL, _END_ALL, _BEGIN, _SEPARATOR, _END))

    def __init__(self, *, is_fenced: bool) -> None:
        self._is_fenced = is_fenced

    @property
    def name(self) -> str:
        return "deepseek_v3" if self._is_fenced else "deepseek_v31"

    @property
    def form(self) -> CallForm:
        if not self._is_fenced:
            call = f"{_BEGIN}{NAME}{_SEPARATOR}{ARGUMENTS}{_END}"
            return CallForm(begin=_BEGIN_ALL, call=call, end=_END_ALL)
        call = f"{_BEGIN}function{_SEPARATOR}{NAME}\n```json\n{ARGUMENTS}\n```{_END}"
        return CallForm(begin=_BEGIN_ALL, call=call, between="\n", end=_END_ALL)

    def suits(self, template: str, model_type: str) -> bool:  # noqa: ARG002  # distilled models have other types
        return _BEGIN in template and ("```json" in template) == self._is_fenced

    def read(self, reader: ReplyReader, context: ReplyContext) -> Reading[None]:  # noqa: ARG002  # marks are enough
        """Read the whole reply."""
        while (yield from reader.content_until(_BEGINS)):
            yield from reader.attempt(_read_calls(reader))


def _read_calls(reader: ReplyReader) -> Reading[None]:
    while True:
        yield from reader.skip_space()
        reader.keep()
        mark = yield from reader.accept(_BEGIN, _END_ALL)
        if mark != _BEGIN:
            yield from reader.skip_space()
            if not mark:
                raise MalformedError
            return
        yield from _read_call(reader)


def _read_call(reader: ReplyReader) -> Reading[None]:
    name, _ = yield from reader.until(_SEPARATORS)
    yield from reader.skip_space()
    is_fenced = (yield from reader.need()) != "{"
    if is_fenced:
        name = (yield from reader.run(_LINE)).strip()
        yield from reader.skip_space()
        yield from reader.accept("```json", "```")
        yield from reader.skip_space()
        if (yield from reader.need()) != "{":
            raise MalformedError
    if not name:
        raise MalformedError
    reader.begin_call(name)
    yield from reader.pass_arguments(read_value(reader))
    reader.end_call()
    yield from reader.skip_space()
    if is_fenced:
        yield from reader.accept("```")
        yield from reader.skip_space()
    yield from reader.accept(_END)
