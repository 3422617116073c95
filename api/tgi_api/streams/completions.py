"""Chunks of /v1/completions."""

from __future__ import annotations

from tgi_api.logprobs import completion_logprobs
from tgi_api.output import Output, Prompt
from tgi_api.streams.openai import CHUNK_END, OpenAIStream, encode
from tgi_core.errors import RequestError
from tgi_core.requests import FinishReason, TextTokenizer

_NO_LOGPROBS = b',"logprobs":null,"finish_reason":null}' + CHUNK_END


class CompletionStream(Output):
    """One chunk for each token with text, then one with the finish reason; ``index`` tells the prompts apart."""

    __slots__ = ("_buffer", "_length", "_logprobs", "_start", "_stream")

    def __init__(
        self, prompt: Prompt, tokenizer: TextTokenizer, stream: OpenAIStream, index: int, *, logprobs: bool
    ) -> None:
        super().__init__(prompt, tokenizer, include_stop=False)
        self._stream = stream
        self._buffer = stream.buffer
        self._logprobs = logprobs
        self._start = stream.chunk_start + b'{"index":%d,"text":' % index
        self._length = 0

    def on_token(self, token_id: int, text: str, logprob: float, special: bool) -> None:  # noqa: ARG002  # OpenAI sends no ids
        visible = "" if special else text
        if self._logprobs:
            columns = encode(completion_logprobs([text], [logprob], [self._length]))
            end = b',"logprobs":' + columns + b',"finish_reason":null}' + CHUNK_END
            self._buffer.push(self._start + encode(visible) + end)
            self._length += len(visible)
        elif visible:
            self._buffer.push(self._start + encode(visible) + _NO_LOGPROBS)

    def finished(self, reason: FinishReason) -> None:
        end = b'"","logprobs":null,"finish_reason":"' + reason.openai.encode() + b'"}' + CHUNK_END
        self._buffer.push(self._start + end)
        self._stream.finish_one(len(self.prompt.token_ids), self.generation.num_tokens)

    def failed(self, error: RequestError) -> None:
        self._stream.fail(error)
