"""Events of /v1/messages; a plain reply is made of what its events say."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from tgi_api.conversation import Conversation
from tgi_api.error_replies import anthropic_error
from tgi_api.output import Output
from tgi_api.schemas.messages import (
    BlockStart,
    BlockStop,
    MessageDelta,
    MessageReply,
    MessageStart,
    MessageStop,
    MessageUsage,
    ReplyBlock,
    StopDelta,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from tgi_api.sse import EventBuffer
from tgi_api.streams.parsed import ParsedStream
from tgi_core.errors import RequestError
from tgi_core.requests import FinishReason, TextTokenizer
from tgi_core.requests.replies import Arguments, CallBegun, CallEnded, Content, Event, Reasoning

_encode = msgspec.json.Encoder().encode

_STOP_REASONS: dict[FinishReason, StopReason] = {
    FinishReason.EOS: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.STOP: "stop_sequence",
}

_DELTAS = {
    TextBlock: b'{"type":"text_delta","text":',
    ThinkingBlock: b'{"type":"thinking_delta","thinking":',
    ToolUseBlock: b'{"type":"input_json_delta","partial_json":',
}


class MessageWriter:
    """Grows one message and writes the events about it.

    Attributes:
        request_id: the request's.
        message: as far as it is known; complete after ``finish``.
    """

    def __init__(self, request_id: str, model: str, conversation: Conversation) -> None:
        self.request_id = request_id
        self.message = MessageReply(
            id=f"msg_{request_id}",
            model=model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=MessageUsage(len(conversation.prompt.token_ids), 0, 0),
        )
        self._make_call_id = conversation.make_call_id
        self._blocks: list[ReplyBlock] = []
        self._open: ReplyBlock | None = None
        self._pieces: list[str] = []
        self._has_begun = False
        self._has_cut_call = False
        self._delta_start = b""

    def add(self, event: Event, output: Output) -> bytes:
        """The events of one more piece of the reply."""
        begun = self._begin(output)
        match event:
            case Content(text):
                return begun + self._add(TextBlock(""), text)
            case Reasoning(text):
                return begun + self._add(ThinkingBlock(""), text)
            case CallBegun(name):
                return begun + self._close() + self._start(ToolUseBlock(self._make_call_id(), name, {}))
            case Arguments(text):
                return begun + self._delta(text)
            case CallEnded(is_complete):
                self._has_cut_call |= not is_complete
                return begun + self._close()

    def finish(self, reason: FinishReason, output: Output) -> bytes:
        """The last events of a reply that has ended."""
        events = self._begin(output) + self._close()
        stop_reason = _STOP_REASONS[reason]
        has_called = any(isinstance(block, ToolUseBlock) for block in self._blocks) and not self._has_cut_call
        if has_called and stop_reason != "max_tokens":
            stop_reason = "tool_use"
        stop = output.generation.matched_stop if stop_reason == "stop_sequence" else None
        if stop_reason == "stop_sequence" and stop is None:
            # A stop token is none of the request's stop sequences.
            stop_reason = "end_turn"
        self.message = replace(
            self.message, content=self._blocks, stop_reason=stop_reason, stop_sequence=stop, usage=count_usage(output)
        )
        return (
            events
            + write_event("message_delta", MessageDelta(StopDelta(stop_reason, stop), self.message.usage))
            + write_event("message_stop", MessageStop())
        )

    def _begin(self, output: Output) -> bytes:
        """The first event; not before the first token, as the cached tokens are only known then."""
        if self._has_begun:
            return b""
        self._has_begun = True
        self.message = replace(self.message, usage=replace(count_usage(output), output_tokens=0))
        return write_event("message_start", MessageStart(self.message))

    def _add(self, empty: ReplyBlock, text: str) -> bytes:
        events = b""
        if type(self._open) is not type(empty):
            events = self._close() + self._start(empty)
        return events + self._delta(text)

    def _start(self, block: ReplyBlock) -> bytes:
        index = len(self._blocks)
        self._open = block
        # A delta is sent for nearly every token, so only its text is encoded for it.
        start = f'event: content_block_delta\ndata: {{"type":"content_block_delta","index":{index},"delta":'
        self._delta_start = start.encode() + _DELTAS[type(block)]
        return write_event("content_block_start", BlockStart(index, block))

    def _delta(self, text: str) -> bytes:
        self._pieces.append(text)
        return self._delta_start + _encode(text) + b"}}\n\n"

    def _close(self) -> bytes:
        """End the block that is open."""
        block, self._open = self._open, None
        if block is None:
            return b""
        text = "".join(self._pieces)
        self._pieces.clear()
        match block:
            case TextBlock():
                block = replace(block, text=text)
            case ThinkingBlock():
                block = replace(block, thinking=text)
            case ToolUseBlock():
                block = replace(block, input=_object(text))
        self._blocks.append(block)
        return write_event("content_block_stop", BlockStop(len(self._blocks) - 1))


class MessageStream(ParsedStream):
    """The events of a streamed message."""

    __slots__ = ("_writer",)

    def __init__(
        self, conversation: Conversation, tokenizer: TextTokenizer, buffer: EventBuffer, writer: MessageWriter
    ) -> None:
        super().__init__(conversation, tokenizer, buffer)
        self._writer = writer

    def write(self, event: Event) -> bytes:
        return self._writer.add(event, self)

    def write_end(self, reason: FinishReason) -> bytes:
        return self._writer.finish(reason, self)

    def write_error(self, error: RequestError) -> bytes:
        return write_event("error", anthropic_error(error, self._writer.request_id))


def write_event(name: str, data: msgspec.Struct) -> bytes:
    """The bytes of one event."""
    return b"event: " + name.encode() + b"\ndata: " + _encode(data) + b"\n\n"


def count_usage(output: Output) -> MessageUsage:
    """The counts of a generation; cached tokens are none of the input's here."""
    generation = output.generation
    cached = generation.cached_tokens
    return MessageUsage(len(output.prompt.token_ids) - cached, generation.num_tokens, cached)


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
