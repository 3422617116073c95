"""Plain replies: gather all tokens, and stop at once when the client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tgi_api.call import Call
from tgi_api.errors import AnyRequest, ClientGoneError
from tgi_api.output import Output, Prompt
from tgi_core.errors import RequestError
from tgi_core.requests import FinishReason, TextTokenizer


class Collected(Output):
    """The tokens of one generation, as columns.

    Attributes:
        token_ids, texts, logprobs, specials: one entry for each token.
    """

    __slots__ = ("_ended", "logprobs", "specials", "texts", "token_ids")

    def __init__(self, prompt: Prompt, tokenizer: TextTokenizer, ended: asyncio.Event, *, include_stop: bool) -> None:
        super().__init__(prompt, tokenizer, include_stop=include_stop)
        self.token_ids: list[int] = []
        self.texts: list[str] = []
        self.logprobs: list[float] = []
        self.specials: list[bool] = []
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

    def on_token(self, token_id: int, text: str, logprob: float, special: bool) -> None:
        self.token_ids.append(token_id)
        self.texts.append(text)
        self.logprobs.append(logprob)
        self.specials.append(special)

    def finished(self, reason: FinishReason) -> None:  # noqa: ARG002  # the base class keeps it
        self._ended.set()

    def failed(self, error: RequestError) -> None:  # noqa: ARG002
        self._ended.set()


async def collect(
    request: AnyRequest, call: Call, tokenizer: TextTokenizer, prompts: Sequence[Prompt], *, include_stop: bool
) -> list[Collected]:
    """Generate from all ``prompts`` at once; returns when the last has ended.

    Raises:
        EngineUnavailableError: no engine is up.
        RequestError: of the first generation that failed.
        ClientGoneError: the client has closed the connection.
    """
    ended = asyncio.Event()
    outputs = [Collected(prompt, tokenizer, ended, include_stop=include_stop) for prompt in prompts]
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
    return outputs


def _all_finished(outputs: Sequence[Collected]) -> bool:
    for output in outputs:
        if output.error is not None:
            raise output.error
    return all(output.reason is not None for output in outputs)


async def _client_gone(request: AnyRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
