"""What a generation's tokens go to: the common part of plain and streamed replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from tgi_core.errors import RequestError
from tgi_core.requests import (
    Alternatives,
    FinishReason,
    Generation,
    GenerationOptions,
    PromptScoring,
    TextTokenizer,
)


class Prompt(msgspec.Struct, frozen=True):
    """A validated request that is ready for the engine.

    Attributes:
        text: as sent, or as the chat template rendered it, or what the token ids sent stand for.
        token_ids: after truncation.
        max_new_tokens: how many may follow.
        options: everything else.
        decoder_prompt: what the output follows where an encoder reads the prompt; else empty.
    """

    text: str
    token_ids: Sequence[int]
    max_new_tokens: int
    options: GenerationOptions
    decoder_prompt: Sequence[int] = ()

    def choices(self) -> list[Prompt]:
        """The prompt of each generation that the options ask for; all have the same token ids."""
        return [replace(self, options=options) for options in self.options.choices()]


class Output(ABC):
    """One generation and what becomes of it (``GenerationOutput``).

    Attributes:
        prompt: what it started from.
        tokenizer: the model's.
        generation: its counts and times.
        reason: why it ended; None until then.
        error: why it failed; None unless it did.
    """

    __slots__ = ("error", "generation", "prompt", "reason", "tokenizer")

    def __init__(self, prompt: Prompt, tokenizer: TextTokenizer) -> None:
        self.prompt = prompt
        self.tokenizer = tokenizer
        kind = PromptScoring if prompt.options.max_new_tokens == 0 else Generation
        self.generation = kind(self, tokenizer, prompt.options)
        self.reason: FinishReason | None = None
        self.error: RequestError | None = None

    def on_prompt_logprobs(self, logprobs: Sequence[float]) -> None:  # noqa: B027 - few replies show them
        """The prompt's log-probabilities from the second token on, if asked for."""

    @abstractmethod
    def on_token(
        self, token_id: int, text: str, logprob: float, special: bool, alternatives: Alternatives | None
    ) -> None:
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
