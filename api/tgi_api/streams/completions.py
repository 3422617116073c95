"""Chunks of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from tgi_api.logprobs import completion_tops, prompt_logprobs, token_logprobs
from tgi_api.output import Output, Prompt
from tgi_api.schemas.completions import CompletionLogprobs
from tgi_api.streams.openai import OpenAIStream, encode
from tgi_core.errors import RequestError
from tgi_core.requests import Alternatives, FinishReason, TextTokenizer

_NO_LOGPROBS = b',"logprobs":null,"finish_reason":null}'


class CompletionStream(Output):
    """One chunk for each token with text, then one with the finish reason; ``index`` tells the choices apart.

    With ``echo`` the prompt comes first, in a chunk of its own.
    """

    __slots__ = ("_buffer", "_length", "_logprobs", "_start", "_stream")

    def __init__(
        self,
        prompt: Prompt,
        tokenizer: TextTokenizer,
        stream: OpenAIStream,
        index: int,
        *,
        logprobs: bool,
        echo: bool,
    ) -> None:
        super().__init__(prompt, tokenizer)
        self._stream = stream
        self._buffer = stream.buffer
        self._logprobs = logprobs
        self._start = stream.chunk_start + b'{"index":%d,"text":' % index
        self._length = len(prompt.text) if echo else 0
        if echo and not logprobs:
            self._push(prompt.text, _NO_LOGPROBS)

    def on_prompt_logprobs(self, logprobs: Sequence[float]) -> None:
        self._push_logprobs(self.prompt.text, prompt_logprobs(self.prompt, logprobs, self.tokenizer))

    def on_token(
        self, token_id: int, text: str, logprob: float, special: bool, alternatives: Alternatives | None
    ) -> None:
        visible = "" if special else text
        if self._logprobs:
            tops = completion_tops(self, token_id, text, logprob, alternatives)
            self._push_logprobs(visible, token_logprobs(text, logprob, tops, self._length))
            self._length += len(visible)
        elif visible:
            self._push(visible, _NO_LOGPROBS)

    def finished(self, reason: FinishReason) -> None:
        self._push("", b',"logprobs":null,"finish_reason":"' + reason.openai.encode() + b'"}')
        self._stream.finish_one()

    def failed(self, error: RequestError) -> None:
        self._stream.fail(error)

    def _push_logprobs(self, text: str, columns: CompletionLogprobs) -> None:
        self._push(text, b',"logprobs":' + encode(columns) + b',"finish_reason":null}')

    def _push(self, text: str, end: bytes) -> None:
        self._buffer.push(self._start + encode(text) + end + self._stream.chunk_end(self))
