"""One running request: its tokens become text, stop strings end it, an output receives both."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tgi_core.engine.frames import Finish
from tgi_core.errors import GenerationError
from tgi_core.requests.detokenize import IncrementalDetokenizer
from tgi_core.requests.stopping import StopHit, StopMatcher

if TYPE_CHECKING:
    from tgi_core.engine.client import EngineClient
    from tgi_core.errors import RequestError
    from tgi_core.requests.options import GenerationOptions
    from tgi_core.requests.tokenizer import TextTokenizer


class FinishReason(Enum):
    """Why a request ended, in each API's words."""

    LENGTH = ("length", "length")
    EOS = ("eos_token", "stop")
    STOP = ("stop_sequence", "stop")

    def __init__(self, tgi: str, openai: str) -> None:
        self.tgi = tgi
        self.openai = openai


class Alternatives(NamedTuple):
    """The most likely tokens at the position of a token, best first; a log-probability may be -inf."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]


_FINISH_REASONS = {
    Finish.EOS: FinishReason.EOS,
    Finish.LENGTH: FinishReason.LENGTH,
    Finish.STOP_TOKEN: FinishReason.STOP,
}


class GenerationOutput(Protocol):
    """What receives a request's tokens and its end; called on the event loop, must neither block nor raise.

    The texts of the tokens that are not special, joined, are the generated text. Special here means hidden: with
    ``skip_special_tokens`` off only the token that ends the text is.
    """

    def on_prompt_logprobs(self, logprobs: Sequence[float]) -> None:
        """Log-probabilities of the prompt's tokens from the second on; once, before the first token, if asked for."""

    def on_token(
        self, token_id: int, text: str, logprob: float, special: bool, alternatives: Alternatives | None
    ) -> None:
        """One more token.

        ``text``: what it completes, "" inside a character; a special token's literal text. ``alternatives``: if asked
        for; the token is among them when it is likely enough.
        """

    def on_finish(self, reason: FinishReason) -> None:
        """The request has ended; nothing follows."""

    def on_error(self, error: RequestError) -> None:
        """The request has failed; nothing follows."""


class Generation:
    """A request's sink for tokens (``TokenSink``).

    With ``include_stop`` (TGI) every token goes out at once and the one that completes a stop string is cut behind
    it. Without (OpenAI) tokens whose text may be part of a stop are held back until that is decided, and the text is
    cut in front of the stop: tokens inside it do not go out. No stop counts before the output has ``min_tokens``.

    Attributes:
        num_tokens: tokens generated so far, with EOS, tokens held back and those inside a stop.
        submitted_at, first_token_at, ended_at: seconds of ``time.monotonic``; 0 until it happens.
        queue_seconds: how long it waited for its first step.
        cached_tokens: prompt tokens found in the prefix cache.
        matched_stop: the stop string that ended it; None when something else did.
    """

    __slots__ = (
        "_alternatives",
        "_client",
        "_detokenizer",
        "_emit",
        "_held",
        "_hidden_finishes",
        "_hidden_ids",
        "_length",
        "_matcher",
        "_options",
        "_output",
        "_push",
        "_request_id",
        "_tokenizer",
        "cached_tokens",
        "ended_at",
        "first_token_at",
        "matched_stop",
        "num_tokens",
        "queue_seconds",
        "submitted_at",
    )

    def __init__(self, output: GenerationOutput, tokenizer: TextTokenizer, options: GenerationOptions) -> None:
        self._output = output
        self._emit = output.on_token
        self._tokenizer = tokenizer
        self._hidden_ids = tokenizer.special_ids if options.skip_special_tokens else frozenset[int]()
        self._hidden_finishes = (Finish.EOS,) if options.include_stop else (Finish.EOS, Finish.STOP_TOKEN)
        self._push = IncrementalDetokenizer(tokenizer, begins_text=options.begins_text).push
        self._options = options
        self._matcher = StopMatcher(options.stop) if options.stop else None
        self._length = 0
        """Characters of text so far, those held back included."""
        self._held: deque[_HeldToken] = deque()
        self._alternatives: Alternatives | None = None
        self._client: EngineClient | None = None
        self._request_id = 0
        self.num_tokens = 0
        self.submitted_at = 0.0
        self.first_token_at = 0.0
        self.ended_at = 0.0
        self.queue_seconds = 0.0
        self.cached_tokens = 0
        self.matched_stop: str | None = None

    def submit(self, client: EngineClient, prompt: Sequence[int], max_new_tokens: int) -> None:
        """Send the request to the engine.

        Raises:
            EngineUnavailableError: no engine is up.
        """
        self.submitted_at = time.monotonic()
        self._client = client
        options = self._options
        self._request_id = client.submit(
            prompt,
            max_new_tokens,
            options.sampling,
            self,
            ignore_eos=options.ignore_eos,
            grammar=options.grammar,
            prompt_logprobs=options.prompt_logprobs,
            stop_token_ids=options.stop_token_ids,
        )

    def cancel(self) -> None:
        """Give the request up; nothing more goes out. Harmless after its end."""
        if self._client is not None:
            self._client.cancel(self._request_id)

    def on_admitted(self, queue_seconds: float, cached_tokens: int) -> None:
        """The request has left the queue."""
        self.queue_seconds = queue_seconds
        self.cached_tokens = cached_tokens

    def on_prompt_logprobs(self, logprobs: Sequence[float]) -> None:
        """The prompt has been computed."""
        self._output.on_prompt_logprobs(logprobs)

    def on_top_tokens(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """What the next token was chosen from."""
        self._alternatives = Alternatives(token_ids, logprobs)

    def on_token(self, token_id: int, logprob: float, finish: Finish) -> None:
        """One more token from the engine."""
        # Only NaN differs from itself; math.isnan costs a call for each token.
        if logprob != logprob and self._options.has_logprobs:  # noqa: PLR0124
            self.cancel()
            self.on_error(GenerationError("the model produced logits that are not numbers"))
            return
        self.num_tokens += 1
        if self.num_tokens == 1:
            self.first_token_at = time.monotonic()
        # These never reach the detokenizer: they are no part of the generated text.
        special = token_id in self._hidden_ids or (bool(finish) and finish in self._hidden_finishes)
        text = self._tokenizer.token_text(token_id) if special else self._push(token_id)
        if self._matcher is None:
            self._emit(token_id, text, logprob, special, self._alternatives)
        elif self._match(self._matcher, token_id, text, logprob, special):
            cut_short = finish is Finish.LENGTH and self._options.length_first
            self._end(FinishReason.LENGTH if cut_short else FinishReason.STOP)
            if not finish and self._client is not None:
                self._client.finish(self._request_id, self.num_tokens)
            return
        if finish:
            self._release(self._length)
            self._end(_FINISH_REASONS[finish])

    def on_error(self, error: RequestError) -> None:
        """The request has failed in the engine."""
        self.ended_at = time.monotonic()
        self._output.on_error(error)

    def _match(self, matcher: StopMatcher, token_id: int, text: str, logprob: float, special: bool) -> bool:
        """Emit or hold the token; whether it completes a stop string."""
        start = self._length
        hit = None
        if text and not special:
            self._length += len(text)
            if self.num_tokens < self._options.sampling.min_tokens:
                matcher.skip(text)
            else:
                hit = matcher.push(text)
        if hit is not None:
            self.matched_stop = matcher.matched
        if self._options.include_stop:
            visible = text if hit is None else text[: hit.end - start]
            self._emit(token_id, visible, logprob, special, self._alternatives)
            return hit is not None
        if hit is None and matcher.held == 0 and not self._held:
            self._emit(token_id, text, logprob, special, self._alternatives)
            return False
        self._held.append(_HeldToken(token_id, text, logprob, special, self._alternatives, start, self._length))
        if hit is None:
            self._release(self._length - matcher.held)
            return False
        self._release_cut(hit)
        return True

    def _release(self, length: int) -> None:
        """Emit the held tokens that lie within the first ``length`` characters."""
        held = self._held
        while held and held[0].end <= length:
            token = held.popleft()
            self._emit(token.token_id, token.text, token.logprob, token.special, token.alternatives)

    def _release_cut(self, hit: StopHit) -> None:
        """Emit the held tokens in front of the stop, the last one cut where it begins."""
        for token in self._held:
            if token.start >= hit.start:
                break
            text = token.text if token.end <= hit.start else token.text[: hit.start - token.start]
            self._emit(token.token_id, text, token.logprob, token.special, token.alternatives)
        self._held.clear()

    def _end(self, reason: FinishReason) -> None:
        self.ended_at = time.monotonic()
        self._output.on_finish(reason)


class PromptScoring(Generation):
    """A request that only wants its prompt scored: the one token that the engine makes is not shown and not counted."""

    __slots__ = ()

    def on_token(self, token_id: int, logprob: float, finish: Finish) -> None:  # noqa: ARG002
        """The prompt has been computed."""
        self.first_token_at = time.monotonic()
        self._end(FinishReason.LENGTH)


class _HeldToken(NamedTuple):
    """A token held back; its text is the characters from ``start`` to ``end`` of the whole text."""

    token_id: int
    text: str
    logprob: float
    special: bool
    alternatives: Alternatives | None
    start: int
    end: int
