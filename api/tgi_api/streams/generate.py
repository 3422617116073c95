"""Events of /generate_stream, and of / with ``stream``."""

from __future__ import annotations

import msgspec

from tgi_api.error_replies import tgi_error
from tgi_api.logprobs import top_tokens
from tgi_api.numbers import float32_json
from tgi_api.output import Output, Prompt
from tgi_api.schemas.generate import StreamDetails
from tgi_api.sse import EventBuffer
from tgi_core.errors import RequestError
from tgi_core.requests import Alternatives, FinishReason, TextTokenizer

_EVENT = b'data: {"index":%d,"token":{"id":%d,"text":%b,"logprob":%b,"special":%b}'
_OPEN_END = b',"generated_text":null,"details":null}\n\n'

_encode = msgspec.json.Encoder().encode


class GenerateStream(Output):
    """One event a token; the last one has the whole text."""

    __slots__ = ("_buffer", "_details", "_full_text", "_index", "_texts")

    def __init__(
        self, prompt: Prompt, tokenizer: TextTokenizer, buffer: EventBuffer, *, details: bool, full_text: bool
    ) -> None:
        super().__init__(prompt, tokenizer)
        self._buffer = buffer
        self._details = details
        self._full_text = full_text
        self._index = 0
        self._texts: list[str] = []

    def on_token(
        self, token_id: int, text: str, logprob: float, special: bool, alternatives: Alternatives | None
    ) -> None:
        self._index += 1
        if not special:
            self._texts.append(text)
        event = _EVENT % (
            self._index,
            token_id,
            _encode(text),
            float32_json(logprob),
            b"true" if special else b"false",
        )
        if alternatives is not None:
            event += b',"top_tokens":' + _encode(top_tokens(self, token_id, text, alternatives))
        self._buffer.push(event + _OPEN_END)

    def finished(self, reason: FinishReason) -> None:
        text = "".join(self._texts)
        if self._full_text:
            text = self.prompt.text + text
        details = None
        if self._details:
            details = StreamDetails(
                reason.tgi, self.generation.num_tokens, self.prompt.options.seed, len(self.prompt.token_ids)
            )
        # A generation ends in the call that delivered its last token, so that token's event has not left yet.
        end = b',"generated_text":' + _encode(text) + b',"details":' + _encode(details) + b"}\n\n"
        self._buffer.replace_end(len(_OPEN_END), end)
        self._buffer.end()

    def failed(self, error: RequestError) -> None:
        self._buffer.push(b"data: " + _encode(tgi_error(error)) + b"\n\n")
        self._buffer.end()
