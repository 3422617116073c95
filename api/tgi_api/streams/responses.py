"""Events of /v1/responses; a plain reply is the response that its events end with."""

from __future__ import annotations

from itertools import count

from msgspec.structs import replace

from tgi_api.conversation import Conversation
from tgi_api.output import Output
from tgi_api.schemas.responses import (
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    OutputItem,
    OutputTokensDetails,
    Response,
    ResponseError,
    ResponseEvent,
    ResponseStatus,
    ResponseUsage,
)
from tgi_api.sse import EventBuffer
from tgi_api.streams.parsed import ParsedStream
from tgi_api.streams.response_items import GrowingCall, GrowingItem, GrowingText, write_event
from tgi_core.errors import RequestError
from tgi_core.requests import FinishReason, TextTokenizer
from tgi_core.requests.replies import Arguments, CallBegun, CallEnded, Content, Event, Reasoning


class ResponseWriter:
    """Grows one response and writes the events about it.

    Attributes:
        response: as far as it is known; complete after ``finish`` or ``fail``.
    """

    def __init__(self, response: Response, conversation: Conversation) -> None:
        self.response = response
        self._make_call_id = conversation.make_call_id
        self._numbers = count()
        self._items: list[OutputItem] = []
        self._open: GrowingItem | None = None

    def begin(self) -> bytes:
        """The first events."""
        return self._state("created") + self._state("in_progress")

    def add(self, event: Event) -> bytes:
        """The events of one more piece of the reply."""
        match event:
            case Content(text):
                return self._add_text(text, is_reasoning=False)
            case Reasoning(text):
                return self._add_text(text, is_reasoning=True)
            case CallBegun(name):
                begun = self._close("completed")
                item_id, call_id = self._item_id("fc"), self._make_call_id()
                self._open = GrowingCall(item_id, len(self._items), self._numbers, name=name, call_id=call_id)
                return begun + self._open.begin()
            case Arguments(text):
                return b"" if self._open is None else self._open.add(text)
            case CallEnded(is_complete):
                return self._close("completed" if is_complete else "incomplete")

    def finish(self, reason: FinishReason, output: Output) -> bytes:
        """The last events of a reply that has ended."""
        is_cut = reason is FinishReason.LENGTH
        events = self._close("incomplete" if is_cut else "completed")
        generation, num_prompt = output.generation, len(output.prompt.token_ids)
        usage = ResponseUsage(
            num_prompt,
            InputTokensDetails(generation.cached_tokens),
            generation.num_tokens,
            OutputTokensDetails(),
            num_prompt + generation.num_tokens,
        )
        details = IncompleteDetails("max_output_tokens") if is_cut else None
        self.response = replace(self.response, usage=usage, incomplete_details=details)
        return events + self._end("incomplete" if is_cut else "completed")

    def fail(self, error: RequestError) -> bytes:
        """The last events of a reply that has failed."""
        events = self._close("incomplete")
        self.response = replace(self.response, error=ResponseError(error.code or "server_error", str(error)))
        return events + self._end("failed")

    def _add_text(self, text: str, *, is_reasoning: bool) -> bytes:
        item, events = self._open, b""
        if not isinstance(item, GrowingText) or item.is_reasoning is not is_reasoning:
            events = self._close("completed")
            item_id = self._item_id("rs" if is_reasoning else "msg")
            item = GrowingText(item_id, len(self._items), self._numbers, is_reasoning=is_reasoning)
            self._open = item
            events += item.begin()
        return events + item.add(text)

    def _close(self, status: ItemStatus) -> bytes:
        """End the item that is open."""
        item, self._open = self._open, None
        if item is None:
            return b""
        events = item.end(status)
        self._items.append(item.item(status))
        return events

    def _end(self, status: ResponseStatus) -> bytes:
        self.response = replace(self.response, status=status, output=self._items)
        return self._state(status)

    def _state(self, status: str) -> bytes:
        event = ResponseEvent(type=f"response.{status}", sequence_number=next(self._numbers), response=self.response)
        return write_event(event)

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self.response.id.removeprefix('resp_')}_{len(self._items)}"


class ResponseStream(ParsedStream):
    """The events of a streamed response."""

    __slots__ = ("_writer",)

    def __init__(
        self, conversation: Conversation, tokenizer: TextTokenizer, buffer: EventBuffer, writer: ResponseWriter
    ) -> None:
        super().__init__(conversation, tokenizer, buffer)
        self._writer = writer
        buffer.push(writer.begin())

    def write(self, event: Event) -> bytes:
        return self._writer.add(event)

    def write_end(self, reason: FinishReason) -> bytes:
        return self._writer.finish(reason, self)

    def write_error(self, error: RequestError) -> bytes:
        return self._writer.fail(error)
