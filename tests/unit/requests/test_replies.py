"""The engine under the parsers of replies."""

from __future__ import annotations

import logging

import pytest

from tests.support.replies import TOOLS
from tgi_core.requests.replies import (
    CallBegun,
    Content,
    Markers,
    Reading,
    ReplyContext,
    ReplyParser,
    ReplyPartParser,
    ReplyReader,
    merge,
)


class Broken(ReplyPartParser):
    """A plugin's parser with a defect."""

    name = "broken"

    def suits(self, template: str, model_type: str) -> bool:
        return True

    def read(self, reader: ReplyReader, context: ReplyContext) -> Reading[None]:
        yield from reader.content_until(Markers(["!"]))
        raise ZeroDivisionError


def test_a_parser_that_fails_costs_no_text(caplog: pytest.LogCaptureFixture) -> None:
    parser = ReplyParser([Broken()], ReplyContext())
    with caplog.at_level(logging.ERROR):
        events = [*parser.push("a"), *parser.push(" !b"), *parser.push("c!"), *parser.finish()]
    assert merge(events) == [Content("a !bc!")]
    assert "content" in caplog.text


def test_text_goes_out_at_once_unless_it_may_be_a_mark() -> None:
    parser = ReplyParser([TOOLS["hermes"]], ReplyContext())
    assert parser.push("Hello") == [Content("Hello")]
    assert parser.push(" <") == []
    assert parser.push("b>") == [Content(" <b>")]
    assert parser.push("\n<tool_call") == []
    assert parser.push('>{"name": "f", "arguments": ') == []
    assert parser.push("{")[0] == CallBegun("f")
    assert parser.num_calls == 1


def test_what_is_parsed_is_not_kept() -> None:
    parser = ReplyParser([TOOLS["hermes"]], ReplyContext())
    for _ in range(1000):
        parser.push("some text <")
    assert len(parser._reader._text) < 100


@pytest.mark.parametrize("markers", [[""], ["<a", "<ab"]])
def test_markers_that_cannot_be_told_apart(markers: list[str]) -> None:
    with pytest.raises(ValueError, match="marker"):
        Markers(markers)
