"""The matcher finds what a search of the whole text finds, however the text is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tgi_core.requests import StopHit, StopMatcher

# Few letters, so that stops overlap themselves, each other and the text.
pieces = st.lists(st.text("ab", max_size=6), max_size=20)
stop_sets = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=4)


def first_to_complete(text: str, stops: list[str], skipped: int = 0) -> StopHit | None:
    """By searching: smallest end behind ``skipped`` characters, then smallest start."""
    found = []
    for stop in stops:
        start = text.find(stop, max(0, skipped + 1 - len(stop)))
        if start >= 0:
            found.append((start + len(stop), start))
    return StopHit(min(found)[1], min(found)[0]) if found else None


def longest_beginning(text: str, stops: list[str]) -> int:
    """Length of the longest end of the text that is the beginning of a stop, but not all of it."""
    lengths = [n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])]
    return max(lengths)


@given(pieces, stop_sets)
def test_like_a_search_of_the_whole(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    text = ""
    for piece in pieces:
        text += piece
        hit = matcher.push(piece)
        assert hit == first_to_complete(text, stops)
        if hit is not None:
            break
        assert matcher.held == longest_beginning(text, stops)


@given(pieces, pieces, stop_sets)
def test_stops_in_skipped_text_do_not_count(skipped: list[str], pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    text = ""
    for piece in skipped:
        text += piece
        matcher.skip(piece)
        assert matcher.held == longest_beginning(text, stops)
    for piece in pieces:
        text += piece
        hit = matcher.push(piece)
        assert hit == first_to_complete(text, stops, len("".join(skipped)))
        if hit is not None:
            break
        assert matcher.held == longest_beginning(text, stops)
