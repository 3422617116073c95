"""The code of docs/backends/write-a-backend.md: files that its blocks write, and commands in order."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "backends" / "write-a-backend.md"
_BLOCK = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """One block: its language, what stands beside it, and its text."""

    language: str
    label: str
    text: str

    def write(self, folder: Path) -> None:
        """Write the file that the label names; with a ``+`` the text is one more method of the file's last class."""
        name, _, more = self.label.partition(" ")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if more == "+":
            path.write_text(f"{path.read_text()}\n{indent(self.text, '    ')}")
        else:
            path.write_text(self.text)


def blocks() -> list[Block]:
    """All blocks in their order."""
    return [Block(*found) for found in _BLOCK.findall(PAGE.read_text())]
