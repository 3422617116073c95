"""Texts that end a run of free text, found however they are cut."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise


class Markers:
    """Texts that end a run of free text, found however they are cut. Spaces and line ends in front belong to them."""

    def __init__(self, markers: Sequence[str]) -> None:
        """``markers``: none of them empty, and none the beginning of another; there may be none at all.

        Raises:
            ValueError: they are not like that.
        """
        ordered = sorted(markers)
        if "" in ordered or any(later.startswith(first) for first, later in pairwise(ordered)):
            raise ValueError(f"a marker is empty or begins another: {ordered}")
        self._markers = tuple(ordered)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._longest = max(map(len, ordered), default=0)

    def find(self, text: str, start: int) -> re.Match[str] | None:
        """The first marker at or after ``start``."""
        return self._pattern.search(text, start) if self._pattern is not None else None

    def held_from(self, text: str, start: int) -> int:
        """Where the end of ``text`` begins that may turn out to belong to a marker, not before ``start``."""
        if self._pattern is None:
            return len(text)
        for position in range(max(start, len(text) - self._longest + 1), len(text)):
            if any(marker.startswith(text[position:]) for marker in self._markers):
                return space_start(text, start, position)
        return space_start(text, start, len(text))


def space_start(text: str, start: int, end: int) -> int:
    """Where the white space that ends ``text[start:end]`` begins."""
    return start + len(text[start:end].rstrip(" \t\r\n"))
