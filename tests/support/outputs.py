"""Doubles for what stands around a running request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tgi_core.engine.client import EngineClient
from tgi_core.errors import RequestError
from tgi_core.requests import Alternatives, FinishReason


class EmittedToken(NamedTuple):
    """One call of ``on_token``."""

    token_id: int
    text: str
    logprob: float
    special: bool
    alternatives: Alternatives | None = None


class RecordingOutput:
    """A ``GenerationOutput`` that keeps what it receives and insists on one end."""

    def __init__(self) -> None:
        self.tokens: list[EmittedToken] = []
        self.prompt_logprobs: Sequence[float] | None = None
        self.reason: FinishReason | None = None
        self.error: RequestError | None = None

    @property
    def text(self) -> str:
        """The generated text."""
        return "".join(token.text for token in self.tokens if not token.special)

    def on_prompt_logprobs(self, logprobs: Sequence[float]) -> None:
        """Keep them."""
        assert self.tokens == []
        self.prompt_logprobs = logprobs

    def on_token(
        self, token_id: int, text: str, logprob: float, special: bool, alternatives: Alternatives | None
    ) -> None:
        """Keep the token."""
        assert self.reason is None
        self.tokens.append(EmittedToken(token_id, text, logprob, special, alternatives))

    def on_finish(self, reason: FinishReason) -> None:
        """Keep the reason."""
        assert self.reason is None
        assert self.error is None
        self.reason = reason

    def on_error(self, error: RequestError) -> None:
        """Keep the error."""
        assert self.reason is None
        self.error = error


class RecordingClient(EngineClient):
    """An engine client that talks to nobody and keeps what it would have said."""

    def __init__(self) -> None:
        self.submitted: list[tuple[object, ...]] = []
        self.finished: list[tuple[int, int]] = []
        self.cancelled: list[int] = []

    def submit(self, prompt, max_new_tokens, sampling, sink, **more):  # type: ignore[no-untyped-def]
        """Keep the request; its id is 77."""
        self.submitted.append((list(prompt), max_new_tokens, sampling, sink, more))
        return 77

    def finish(self, request_id: int, num_tokens: int) -> None:
        """Keep the call."""
        self.finished.append((request_id, num_tokens))

    def cancel(self, request_id: int) -> None:
        """Keep the call."""
        self.cancelled.append(request_id)
