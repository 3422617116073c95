"""What a generation's tokens go to: the common part of plain and streamed replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from tgi_core.errors import RequestError
from tgi_core.requests import FinishReason, Generation, GenerationOptions, TextTokenizer


class Prompt(msgspec.Struct, frozen=True):
    """A validated request that is ready for the engine.

    Attributes:
        text: as sent, or as the chat template rendered it.
        token_ids: after truncation.
        max_new_tokens: how many may follow.
        options: everything else.
    """

    text: str
    token_ids: Sequence[int]
    max_new_tokens: int
    options: GenerationOptions


class Output(ABC):
    """One generation and what becomes of it (``GenerationOutput``).

    Attributes:
        prompt: what it started from.
        generation: its counts and times.
        reason: why it ended; None until then.
        error: why it failed; None unless it did.
    """

    __slots__ = ("error", "generation", "prompt", "reason")

    def __init__(self, prompt: Prompt, tokenizer: TextTokenizer, *, include_stop: bool) -> None:
        self.prompt = prompt
        self.generation = Generation(self, tokenizer, prompt.options.stop, include_stop=include_stop)
        self.reason: FinishReason | None = None
        self.error: RequestError | None = None

    @abstractmethod
    def on_token(self, token_id: int, text: str, logprob: float, special: bool) -> None:
        """One more token."""

    def on_finish(self, reason: FinishReason) -> None:
        """The generation has ended."""
        self.reason = reason
        self.finished(reason)

    def on_error(self, error: RequestError) -> None:
        """The generation has failed."""
        self.error = error
        self.failed(error)

    @abstractmethod
    def finished(self, reason: FinishReason) -> None:
        """Complete the reply."""

    @abstractmethod
    def failed(self, error: RequestError) -> None:
        """End the reply with ``error``."""
