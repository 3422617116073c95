"""How long work on weights reports that it moves on."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called often, from the thread that works; must be quick and must not raise."""

    def __call__(self, description: str, done_bytes: int, total_bytes: int) -> None:
        """``done_bytes`` of ``total_bytes`` of what ``description`` names are done."""


def no_progress(description: str, done_bytes: int, total_bytes: int) -> None:
    """The progress callback that shows nothing."""
