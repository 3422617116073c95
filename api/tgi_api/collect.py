"""Plain replies: gather all tokens, and stop at once when the client has gone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from tgi_api.call import Call
from tgi_api.errors import AnyRequest, ClientGoneError
from tgi_api.output import Output, Prompt
from tgi_core.errors import RequestError
from tgi_core.requests import Alternatives, FinishReason, TextTokenizer


class Collected(Output):
    """The tokens of one generation, as columns.

    Attributes:
        token_ids, texts, logprobs, specials, alternatives: one entry for each token.
        prompt_logprobs: of the prompt's tokens from the second on; empty unless asked for.
    """

    __slots__ = ("_ended", "alternatives", "logprobs", "prompt_logprobs", "specials", "texts", "token_ids")

    def __init__(self, prompt: Prompt, tokenizer: TextTokenizer, ended: asyncio.Event) -> None:
        super().__init__(prompt, tokenizer)
        self.token_ids: list[int] = []
        self.texts: list[str] = []
        self.logprobs: list[float] = []
        self.specials: list[bool] = []
        self.alternatives: list[Alternatives | None] = []
        self.prompt_logprobs: Sequence[float] = ()
        self._ended = ended

    @property
    def text(self) -> str:
        """The generated text, without special tokens."""
        return "".join(text for text, special in zip(self.texts, self.specials, strict=True) if not special)

    @property
    def finish_reason(self) -> FinishReason:
        """Why the generation ended; for one that has."""
        assert self.reason is not None
        return self.reason

    @property
    def mean_logprob(self) -> float:
        """How likely the output is, by token; what ``best_of`` compares."""
        return sum(self.logprobs) / len(self.logprobs) if self.logprobs else -math.inf

    def on_prompt_logprobs(self, logprobs: Sequence[float]) -> None:
        self.prompt_logprobs = logprobs

    def on_token(
        self, token_id: int, text: str, logprob: float, special: bool, alternatives: Alternatives | None
    ) -> None:
        self.token_ids.append(token_id)
        self.texts.append(text)
        self.logprobs.append(logprob)
        self.specials.append(special)
        self.alternatives.append(alternatives)

    def finished(self, reason: FinishReason) -> None:  # noqa: ARG002  # the base class keeps it
        self._ended.set()

    def failed(self, error: RequestError) -> None:  # noqa: ARG002
        self._ended.set()


async def collect(
    request: AnyRequest, call: Call, tokenizer: TextTokenizer, prompts: Sequence[Prompt]
) -> list[list[Collected]]:
    """Generate from all ``prompts`` at once, as often as each one's options say; returns when the last has ended.

    Returns:
        The outputs of each prompt, in the order of its choices.

    Raises:
        EngineUnavailableError: no engine is up.
        RequestError: of the first generation that failed.
        ClientGoneError: the client has closed the connection.
    """
    ended = asyncio.Event()
    groups = [[Collected(choice, tokenizer, ended) for choice in prompt.choices()] for prompt in prompts]
    outputs = [output for group in groups for output in group]
    for output in outputs:
        call.start(output)
    gone = asyncio.create_task(_client_gone(request))
    try:
        while not _all_finished(outputs):
            if gone.done():
                raise ClientGoneError("The client has gone")
            ended.clear()
            progress = asyncio.create_task(ended.wait())
            await asyncio.wait({gone, progress}, return_when=asyncio.FIRST_COMPLETED)
            progress.cancel()
    finally:
        gone.cancel()
    return groups


def most_likely(outputs: Sequence[Collected]) -> list[Collected]:
    """The outputs with the highest mean log-probability of their tokens first."""
    return sorted(outputs, key=lambda output: -output.mean_logprob)


def returned_choices(outputs: Sequence[Collected]) -> list[Collected]:
    """The outputs of one prompt that its options want returned: the ``n`` most likely ones of ``best_of``."""
    n = outputs[0].prompt.options.n
    return list(outputs) if n == len(outputs) else most_likely(outputs)[:n]


def _all_finished(outputs: Sequence[Collected]) -> bool:
    for output in outputs:
        if output.error is not None:
            raise output.error
    return all(output.reason is not None for output in outputs)


async def _client_gone(request: AnyRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
