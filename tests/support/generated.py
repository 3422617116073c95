"""Pages of the documentation that are generated in part."""

from __future__ import annotations

from pathlib import Path


def replace_part(page: Path, start: str, end: str, text: str) -> None:
    """Put ``text`` between two marks of a page."""
    before, rest = page.read_text().split(start)
    page.write_text(before + start + text + end + rest.split(end)[1])
