"""Chunks of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from tgi_api.conversation import Conversation, chat_finish_reason
from tgi_api.logprobs import chat_logprob
from tgi_api.output import Output, Prompt
from tgi_api.schemas.chat import ChatDelta, ChatLogprobs, FunctionDelta, ToolCallDelta
from tgi_api.streams.openai import OpenAIStream, encode
from tgi_core.errors import RequestError
from tgi_core.requests import Alternatives, FinishReason, TextTokenizer
from tgi_core.requests.replies import Arguments, CallBegun, CallEnded, Content, Event, Reasoning

_FIRST_DELTA = b'{"index":%d,"delta":{"role":"assistant","content":'
_DELTA = b'{"index":%d,"delta":{"content":'
_NO_LOGPROBS = b'},"logprobs":null,"finish_reason":null}'


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
            self._push(text, special, b'},"logprobs":' + entry + b',"finish_reason":null}')
        elif text and not special:
            self._push(text, special, _NO_LOGPROBS)

    def finished(self, reason: FinishReason) -> None:
        # The empty content is TGI's; clients that print every delta's content count on a string.
        self._push("", False, b'},"logprobs":null,"finish_reason":"' + reason.openai.encode() + b'"}')
        self._stream.finish_one()

    def failed(self, error: RequestError) -> None:
        self._stream.fail(error)

    def _push(self, text: str, special: bool, end: bytes) -> None:
        self._buffer.push(self._start + (b'""' if special else encode(text)) + end + self._stream.chunk_end(self))
        self._start = self._later_start


class ParsedChatStream(ChatStream):
    """A chunk for each piece of content, of reasoning or of a call, then one with the finish reason.

    With log-probabilities every token has a chunk; what the parser holds back leaves its delta empty.
    """

    __slots__ = ("_begin", "_call", "_conversation", "_parser", "_role")

    def __init__(
        self,
        prompt: Prompt,
        tokenizer: TextTokenizer,
        stream: OpenAIStream,
        index: int,
        conversation: Conversation,
        *,
        logprobs: bool,
    ) -> None:
        super().__init__(prompt, tokenizer, stream, index, logprobs=logprobs)
        self._conversation = conversation
        self._parser = conversation.make_parser()
        self._begin = stream.chunk_start + b'{"index":%d,"delta":' % index
        self._role = True
        self._call = -1

    def on_token(
        self, token_id: int, text: str, logprob: float, special: bool, alternatives: Alternatives | None
    ) -> None:
        events = self._parser.push(text, special)
        entry = b"null"
        if self._logprobs:
            entry = encode(ChatLogprobs([chat_logprob(self, token_id, text, logprob, alternatives)]))
        self._push_events(events, entry)

    def finished(self, reason: FinishReason) -> None:
        self._push_events(self._parser.finish(), b"null")
        delta = ChatDelta() if self._parser.num_calls else ChatDelta(content="")
        self._push_delta(delta, b"null", encode(chat_finish_reason(reason, self._parser)))
        self._stream.finish_one()

    def _push_events(self, events: Sequence[Event], entry: bytes) -> None:
        deltas = [delta for event in events if (delta := self._delta(event)) is not None]
        if not deltas and entry != b"null":
            deltas = [ChatDelta()]
        for delta in deltas:
            self._push_delta(delta, entry, b"null")
            entry = b"null"

    def _delta(self, event: Event) -> ChatDelta | None:
        match event:
            case Content(text):
                return ChatDelta(content=text)
            case Reasoning(text):
                return ChatDelta(reasoning_content=text)
            case CallBegun(name):
                self._call += 1
                return self._call_delta(FunctionDelta(name, ""), self._conversation.make_call_id(), "function")
            case Arguments(text):
                return self._call_delta(FunctionDelta(arguments=text))
            case CallEnded():
                return None

    def _call_delta(
        self, function: FunctionDelta, call_id: str | None = None, kind: Literal["function"] | None = None
    ) -> ChatDelta:
        return ChatDelta(tool_calls=[ToolCallDelta(index=self._call, id=call_id, type=kind, function=function)])

    def _push_delta(self, delta: ChatDelta, entry: bytes, finish_reason: bytes) -> None:
        if self._role:
            delta = replace(delta, role="assistant")
            self._role = False
        end = b',"logprobs":' + entry + b',"finish_reason":' + finish_reason + b"}"
        self._buffer.push(self._begin + encode(delta) + end + self._stream.chunk_end(self))
