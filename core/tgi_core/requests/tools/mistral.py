"""Mistral: ``[TOOL_CALLS][{"name": …, "arguments": …}]``, and newer ``[TOOL_CALLS]name[ARGS]{…}``."""

from __future__ import annotations

import re

from tgi_core.requests.replies import MalformedError, Markers, Reading, ReplyContext, ReplyReader, read_value
from tgi_core.requests.tools.json_calls import read_json_calls
from tgi_core.requests.tools.parser import ARGUMENTS, NAME, CallForm, ToolParser

_SPACE = re.compile(r"\s")
_BEGIN, _ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_BEGINS = Markers((_BEGIN,))
_ENDS_OF_NAME = Markers((_ID, _ARGS, "{"))


class MistralToolParser(ToolParser):
    """Reads both forms; ``has_names`` says that the model writes the newer one."""

    special_tokens = frozenset((_BEGIN, _ID, _ARGS))

    def __init__(self, *, has_names: bool) -> None:
        self._has_names = has_names

    @property
    def name(self) -> str:
        return "mistral_args" if self._has_names else "mistral"

    @property
    def form(self) -> CallForm:
        if self._has_names:
            return CallForm(call=f"{_BEGIN}{NAME}{_ARGS}{ARGUMENTS}")
        call = f'{{"name": "{NAME}", "arguments": {ARGUMENTS}}}'
        return CallForm(begin=f"{_BEGIN}[", call=call, between=", ", end="]")

    @property
    def call_id_length(self) -> int:
        return 9

    def suits(self, template: str, model_type: str) -> bool:  # noqa: ARG002  # many types share the templates
        return _BEGIN in template and (_ARGS in template) == self._has_names

    def read(self, reader: ReplyReader, context: ReplyContext) -> Reading[None]:  # noqa: ARG002  # the marker is enough
        """Read the whole reply."""
        while (yield from reader.content_until(_BEGINS)):
            yield from reader.attempt(_read_calls(reader))


def _read_calls(reader: ReplyReader) -> Reading[None]:
    yield from reader.skip_space()
    if (yield from reader.need()) in "[{":
        yield from read_json_calls(reader, None)
    else:
        yield from _read_named_call(reader)
    yield from reader.skip_space()


def _read_named_call(reader: ReplyReader) -> Reading[None]:
    name, marker = yield from reader.until(_ENDS_OF_NAME)
    if not name or _SPACE.search(name):
        raise MalformedError
    if marker == _ID:
        _, marker = yield from reader.until(Markers((_ARGS, "{")))
    if marker == _ARGS:
        yield from reader.skip_space()
        yield from reader.expect("{")
    reader.step_back(1)
    reader.begin_call(name)
    yield from reader.pass_arguments(read_value(reader))
    reader.end_call()
