"""Stop strings, matched in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class StopHit(msgspec.Struct, frozen=True):
    """A stop string found in a text: it is the characters from ``start`` to ``end`` of the whole text."""

    start: int
    end: int


class StopMatcher:
    """Finds the first stop string to complete; of several that complete at once the longest.

    Knuth-Morris-Pratt for each stop: a character costs amortised constant time for each, however the text is cut and
    however long the stops are, and the automata's states tell how much of the text may be the beginning of a stop.
    """

    __slots__ = ("_automata", "_length", "held", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        """``stops``: not empty, and none of them is."""
        self._automata = [_Automaton(stop) for stop in stops]
        self._length = 0
        self.held = 0
        """Characters at the end of the text that may be the beginning of a stop."""
        self.matched: str | None = None
        """The stop of the hit; None before."""

    def push(self, text: str) -> StopHit | None:
        """Append ``text``; the stop that it completes, if any. After a hit nothing may follow."""
        hit: StopHit | None = None
        held = 0
        for automaton in self._automata:
            end = automaton.advance(text)
            if end:
                stop = self._length + end
                start = stop - len(automaton.stop)
                if hit is None or (stop, start) < (hit.end, hit.start):
                    hit = StopHit(start, stop)
                    self.matched = automaton.stop
            elif automaton.state > held:
                held = automaton.state
        self._length += len(text)
        self.held = 0 if hit is not None else held
        return hit

    def skip(self, text: str) -> None:
        """Append ``text`` in which no stop counts; one that it begins may be completed later."""
        for automaton in self._automata:
            automaton.skip(text)
        self._length += len(text)
        self.held = max(automaton.state for automaton in self._automata)


class _Automaton:
    """One stop's automaton.

    Attributes:
        stop: the string.
        state: how many of its first characters the text ends with.
    """

    __slots__ = ("_borders", "state", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.state = 0
        # For each prefix of the stop that was reached so far the length of its longest proper border. Growing it with
        # the matches keeps a stop of a million characters free until a text comes close to it.
        self._borders = [0]

    def skip(self, text: str) -> None:
        """Read ``text``; a stop that it completes leaves only its longest border, which may begin another."""
        position = self.advance(text)
        while position:
            position = self.advance(text, position)

    def advance(self, text: str, position: int = 0) -> int:
        """Read ``text`` from ``position``; returns where the stop completed, 0 when it did not."""
        stop, state, borders = self.stop, self.state, self._borders
        length = len(text)
        while position < length:
            if state == 0:
                position = text.find(stop[0], position)
                if position < 0:
                    break
            character = text[position]
            while state and stop[state] != character:
                state = borders[state - 1]
            position += 1
            if stop[state] != character:
                continue
            state += 1
            if state > len(borders):
                borders.append(self._border(state))
            if state == len(stop):
                self.state = borders[state - 1]
                return position
        self.state = state
        return 0

    def _border(self, length: int) -> int:
        """Length of the longest proper border of the stop's first ``length`` characters; shorter ones are known."""
        stop, borders = self.stop, self._borders
        last = stop[length - 1]
        border = borders[length - 2]
        while border and stop[border] != last:
            border = borders[border - 1]
        return border + 1 if stop[border] == last else 0
