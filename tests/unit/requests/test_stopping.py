from __future__ import annotations

import time

import pytest

from tgi_core.requests import StopHit, StopMatcher


def test_a_stop_inside_one_piece() -> None:
    assert StopMatcher(["cd"]).push("abcdef") == StopHit(2, 4)


def test_a_stop_across_pieces() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert [matcher.push(piece) for piece in ["text\n", "\nUs", "er"]] == [None, None, None]
    assert matcher.push(": hi") == StopHit(4, 11)


def test_the_first_stop_to_complete_wins() -> None:
    # "abcd" begins first, "bc" is complete first.
    assert StopMatcher(["abcd", "bc"]).push("abcd") == StopHit(1, 3)


def test_of_stops_that_complete_together_the_longest_wins() -> None:
    assert StopMatcher(["c", "abc", "bc"]).push("abc") == StopHit(0, 3)


@pytest.mark.parametrize(
    ("text", "held"),
    [("xyz", 0), ("x<", 1), ("x<end", 4), ("x<e<e", 2), ("x<end<", 1), ("x<end!", 0)],
)
def test_held_is_the_longest_end_that_may_begin_a_stop(text: str, held: int) -> None:
    matcher = StopMatcher(["<end>", "END"])
    assert matcher.push(text) is None
    assert matcher.held == held


def test_a_stop_that_overlaps_itself() -> None:
    matcher = StopMatcher(["aabaaab"])
    assert matcher.push("aabaabaaa") is None
    assert matcher.push("b") == StopHit(3, 10)


def test_a_mismatch_falls_back_to_the_longest_beginning_that_still_fits() -> None:
    assert StopMatcher(["aabaaac"]).push("aabaaabaaac") == StopHit(4, 11)


def test_a_stop_of_a_megabyte_costs_nothing_until_it_is_near() -> None:
    before = time.perf_counter()
    matcher = StopMatcher(["z" * 1_000_000])
    assert matcher.push("z" * 10_000) is None
    assert matcher.held == 10_000
    assert matcher.push("y") is None
    assert matcher.held == 0
    assert time.perf_counter() - before < 0.5
