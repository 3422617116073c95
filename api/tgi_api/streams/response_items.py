"""The items of a response while they grow, and the events about each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import msgspec

from tgi_api.schemas.responses import (
    ArgumentsEvent,
    ItemEvent,
    ItemStatus,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    PartEvent,
    ReasoningText,
    StreamEvent,
    TextEvent,
)

_encode = msgspec.json.Encoder().encode


def write_event(event: StreamEvent) -> bytes:
    """The bytes of one event."""
    return b"event: " + event.type.encode() + b"\ndata: " + _encode(event) + b"\n\n"


class GrowingItem(ABC):
    """An item that pieces of text are added to.

    Args:
        item_id: its id.
        index: its place in the output.
        numbers: the sequence numbers of the response's events.
    """

    def __init__(self, item_id: str, index: int, numbers: Iterator[int]) -> None:
        self.item_id = item_id
        self.index = index
        self._numbers = numbers
        self._pieces: list[str] = []
        self._delta_start = b""
        self._delta_end = b""

    @property
    def text(self) -> str:
        """All pieces so far."""
        return "".join(self._pieces)

    @abstractmethod
    def item(self, status: ItemStatus) -> OutputItem:
        """The item as far as it has grown."""

    def begin(self) -> bytes:
        """The events before the first piece."""
        return self._item_event("response.output_item.added", "in_progress")

    def add(self, text: str) -> bytes:
        """The event of one more piece."""
        self._pieces.append(text)
        return self._delta_start + _encode(text) + self._delta_end % next(self._numbers)

    def end(self, status: ItemStatus) -> bytes:
        """The events after the last piece."""
        return self._item_event("response.output_item.done", status)

    def _item_event(self, kind: str, status: ItemStatus) -> bytes:
        event = ItemEvent(
            type=kind, sequence_number=next(self._numbers), output_index=self.index, item=self.item(status)
        )
        return write_event(event)

    def _frame_deltas(self, kind: str, middle: str, end: bytes) -> None:
        # A delta is sent for nearly every token, so only its text is encoded for it.
        start = f'event: {kind}\ndata: {{"type":"{kind}","item_id":"{self.item_id}","output_index":{self.index}{middle}'
        self._delta_start = start.encode() + b',"delta":'
        self._delta_end = end + b',"sequence_number":%d}\n\n'


class GrowingText(GrowingItem):
    """A message, or reasoning: an item with one part of text."""

    def __init__(self, item_id: str, index: int, numbers: Iterator[int], *, is_reasoning: bool) -> None:
        super().__init__(item_id, index, numbers)
        self.is_reasoning = is_reasoning
        self._kind = "response.reasoning_text" if is_reasoning else "response.output_text"
        self._frame_deltas(self._kind + ".delta", ',"content_index":0', b"" if is_reasoning else b',"logprobs":[]')

    def item(self, status: ItemStatus) -> OutputItem:
        text = self.text
        if self.is_reasoning:
            return OutputReasoning(self.item_id, status, [ReasoningText(text)] if text else [])
        return OutputMessage(self.item_id, status, [OutputText(text)] if text else [])

    def begin(self) -> bytes:
        return super().begin() + self._part_event("response.content_part.added")

    def end(self, status: ItemStatus) -> bytes:
        event = TextEvent(
            type=self._kind + ".done",
            sequence_number=next(self._numbers),
            item_id=self.item_id,
            output_index=self.index,
            content_index=0,
            text=self.text,
            logprobs=None if self.is_reasoning else [],
        )
        return write_event(event) + self._part_event("response.content_part.done") + super().end(status)

    def _part_event(self, kind: str) -> bytes:
        event = PartEvent(
            type=kind,
            sequence_number=next(self._numbers),
            item_id=self.item_id,
            output_index=self.index,
            content_index=0,
            part=ReasoningText(self.text) if self.is_reasoning else OutputText(self.text),
        )
        return write_event(event)


class GrowingCall(GrowingItem):
    """A call of a function; the pieces are of its arguments."""

    def __init__(self, item_id: str, index: int, numbers: Iterator[int], *, name: str, call_id: str) -> None:
        super().__init__(item_id, index, numbers)
        self._name = name
        self._call_id = call_id
        self._frame_deltas("response.function_call_arguments.delta", "", b"")

    def item(self, status: ItemStatus) -> OutputItem:
        return OutputCall(self.item_id, status, self._call_id, self._name, self.text)

    def end(self, status: ItemStatus) -> bytes:
        event = ArgumentsEvent(
            type="response.function_call_arguments.done",
            sequence_number=next(self._numbers),
            item_id=self.item_id,
            output_index=self.index,
            name=self._name,
            arguments=self.text,
        )
        return write_event(event) + super().end(status)
