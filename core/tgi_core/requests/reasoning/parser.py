"""What tells a model's reasoning from its answer."""

from __future__ import annotations

from abc import abstractmethod

from tgi_core.requests.replies import ReplyPartParser


class ReasoningParser(ReplyPartParser):
    """Reads the reasoning at the beginning of a reply; the first of a reply's parsers."""

    @abstractmethod
    def open_end(self, prompt: str) -> str | None:
        """What ends the reasoning when the reply to ``prompt`` begins inside it; None when it does not."""
