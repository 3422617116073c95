"""However a reply is cut into pieces, and wherever it ends, it is parsed the same and nothing is lost."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.replies import NAMES, REASONING, REPLIES, TOOLS, Reply, parse
from tgi_core.requests.replies import CallEnded, Event, ReplyContext, ReplyPartParser

FAMILIES = [[parser] for parser in TOOLS.values()]
FAMILIES += [[reasoning, TOOLS["hermes"]] for reasoning in REASONING.values()]

FRAGMENTS = sorted(
    {token for parts in FAMILIES for part in parts for token in part.special_tokens}
    | {"<tool", "```", "```json\n", "```tool_code\n", '{"name": "weather", "arguments": ', '"now"', '{"a": "'}
    | {'"name"', '"parameters"', ": ", "{", "}", "[", "]", "(", ")", ",", ";", "=", '"', "'", "\\", "\n", " ", "1", "-"}
    | {"weather(", "now()", "a='x'", "null", "tru", "function", "to=functions.now", "print(", "погода", "👍🏽", "\x01"}
)


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[int]]:
    """A text out of parts of all formats, or a well-formed reply that is cut off; and where to cut it."""
    text = draw(
        st.one_of(
            st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join),
            st.sampled_from([reply.text for reply in REPLIES]).flatmap(
                lambda whole: st.integers(0, len(whole)).map(lambda end: whole[:end])
            ),
        )
    )
    return text, draw(st.lists(st.integers(0, len(text)), max_size=12))


@pytest.mark.parametrize("parts", FAMILIES, ids=lambda parts: "+".join(part.name for part in parts))
@given(cut=cut_texts())
def test_pieces_do_not_matter(parts: list[ReplyPartParser], cut: tuple[str, list[int]]) -> None:
    text, cuts = cut
    whole = parse(parts, text)
    assert parse(parts, text, cuts) == whole
    assert parse(parts, text, range(len(text))) == whole


def cyrillic(text: str) -> Counter[str]:
    return Counter(character for character in text if "а" <= character.lower() <= "я")


def written(events: list[Event]) -> str:
    return "".join("".join(event) for event in events if not isinstance(event, CallEnded))


@pytest.mark.parametrize("reply", REPLIES, ids=[f"{number}-{reply.family}" for number, reply in enumerate(REPLIES)])
def test_nothing_is_lost_wherever_a_reply_ends(reply: Reply) -> None:
    """No format has Cyrillic letters, so all of them must be in what comes out."""
    text = reply.text.replace("Köln", "Киев")
    if reply.family != "harmony":  # there a name is part of a header, and one that is cut off says nothing
        text = text.replace("weather", "погода")
    for word, russian in (("Gut.", "Хорошо."), ("Ich", "Я"), ("Er fragt", "Он"), ("Vier", "Четыре"), ("bald", "Да")):
        text = text.replace(word, russian)
    for end in range(len(text) + 1):
        assert cyrillic(written(parse([TOOLS[reply.family]], text[:end]))) == cyrillic(text[:end]), text[:end]


@given(words=st.lists(st.sampled_from(["да", " ", "нет", "\n", "<tool_call", ">", "{", '"name"', "}"]), max_size=20))
def test_a_text_without_calls_comes_out_as_it_is(words: list[str]) -> None:
    text = "".join(words)
    events = parse([TOOLS["hermes"]], text, context=ReplyContext("", NAMES))
    assert written(events) == text
