"""Replies that go through a parser: streamed, and gathered."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from tgi_api.collect import Collected
from tgi_api.conversation import Conversation
from tgi_api.output import Output
from tgi_api.sse import EventBuffer
from tgi_core.errors import RequestError
from tgi_core.requests import Alternatives, FinishReason, TextTokenizer
from tgi_core.requests.replies import Event


class ParsedStream(Output):
    """A streamed reply to a conversation, told event by event as its parser finds them."""

    __slots__ = ("_buffer", "_parser")

    def __init__(self, conversation: Conversation, tokenizer: TextTokenizer, buffer: EventBuffer) -> None:
        super().__init__(conversation.prompt, tokenizer)
        self._buffer = buffer
        self._parser = conversation.make_parser()

    @abstractmethod
    def write(self, event: Event) -> bytes:
        """The bytes that tell ``event``."""

    @abstractmethod
    def write_end(self, reason: FinishReason) -> bytes:
        """The last bytes of a reply that has ended."""

    @abstractmethod
    def write_error(self, error: RequestError) -> bytes:
        """The last bytes of a reply that has failed."""

    def on_token(
        self,
        token_id: int,  # noqa: ARG002  # these APIs tell no tokens
        text: str,
        logprob: float,  # noqa: ARG002
        special: bool,
        alternatives: Alternatives | None,  # noqa: ARG002
    ) -> None:
        self._push(self._parser.push(text, special))

    def finished(self, reason: FinishReason) -> None:
        self._push(self._parser.finish())
        self._buffer.push(self.write_end(reason))
        self._buffer.end()

    def failed(self, error: RequestError) -> None:
        self._buffer.push(self.write_error(error))
        self._buffer.end()

    def _push(self, events: list[Event]) -> None:
        for event in events:
            self._buffer.push(self.write(event))


def reply_events(conversation: Conversation, output: Collected) -> Iterator[Event]:
    """What the parser finds in a gathered reply."""
    parser = conversation.make_parser()
    for text, special in zip(output.texts, output.specials, strict=True):
        yield from parser.push(text, special)
    yield from parser.finish()
