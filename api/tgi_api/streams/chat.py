"""Chunks of /v1/chat/completions."""

from __future__ import annotations

from tgi_api.logprobs import chat_logprob
from tgi_api.output import Output, Prompt
from tgi_api.schemas.chat import ChatLogprobs
from tgi_api.streams.openai import CHUNK_END, OpenAIStream, encode
from tgi_core.errors import RequestError
from tgi_core.requests import Alternatives, FinishReason, TextTokenizer

_FIRST_DELTA = b'{"index":%d,"delta":{"role":"assistant","content":'
_DELTA = b'{"index":%d,"delta":{"content":'
_NO_LOGPROBS = b'},"logprobs":null,"finish_reason":null}' + CHUNK_END


class ChatStream(Output):
    """One chunk for each token with text, then one with the finish reason; ``index`` tells the choices apart."""

    __slots__ = ("_buffer", "_later_start", "_logprobs", "_start", "_stream")

    def __init__(
        self, prompt: Prompt, tokenizer: TextTokenizer, stream: OpenAIStream, index: int, *, logprobs: bool
    ) -> None:
        super().__init__(prompt, tokenizer)
        self._stream = stream
        self._buffer = stream.buffer
        self._logprobs = logprobs
        self._start = stream.chunk_start + _FIRST_DELTA % index
        self._later_start = stream.chunk_start + _DELTA % index

    def on_token(
        self, token_id: int, text: str, logprob: float, special: bool, alternatives: Alternatives | None
    ) -> None:
        if self._logprobs:
            entry = encode(ChatLogprobs([chat_logprob(self, token_id, text, logprob, alternatives)]))
            self._push(text, special, b'},"logprobs":' + entry + b',"finish_reason":null}' + CHUNK_END)
        elif text and not special:
            self._push(text, special, _NO_LOGPROBS)

    def finished(self, reason: FinishReason) -> None:
        # The empty content is TGI's; clients that print every delta's content count on a string.
        self._push("", False, b'},"logprobs":null,"finish_reason":"' + reason.openai.encode() + b'"}' + CHUNK_END)
        self._stream.finish_one(self.generation.num_tokens)

    def failed(self, error: RequestError) -> None:
        self._stream.fail(error)

    def _push(self, text: str, special: bool, end: bytes) -> None:
        self._buffer.push(self._start + (b'""' if special else encode(text)) + end)
        self._start = self._later_start
