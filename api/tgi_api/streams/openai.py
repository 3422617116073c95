"""What the streams of the two OpenAI routes have in common: the frame around a piece of text, usage, the end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tgi_api.error_replies import openai_error_event
from tgi_api.output import Output
from tgi_api.reply import ReplyHead, count_usage, reply_usage
from tgi_api.schemas.openai import OpenAIRequest
from tgi_api.sse import DONE, EventBuffer
from tgi_core.errors import RequestError

encode = msgspec.json.Encoder().encode


_CHUNK_END = b'],"usage":null}\n\n'


class OpenAIStream:
    """A stream that one or several generations share: what its chunks begin with, and how it ends.

    Args:
        buffer: where the events go.
        head: what every chunk begins with.
        body: the request, which says what counts it wants.

    Attributes:
        buffer: where the events go.
        chunk_start: a chunk's event up to its choices.
    """

    __slots__ = ("_groups", "_include_all_usage", "_include_usage", "_running", "buffer", "chunk_start")

    def __init__(self, buffer: EventBuffer, head: ReplyHead, body: OpenAIRequest) -> None:
        self.buffer = buffer
        self.chunk_start = b"data: " + encode(head)[:-1] + b',"choices":['
        self._include_usage = body.includes_usage
        self._include_all_usage = body.includes_all_usage
        self._groups: list[Sequence[Output]] = []
        self._running = 0

    def add(self, outputs: Sequence[Output]) -> None:
        """The outputs of one prompt belong to the stream; before the first one starts."""
        self._groups.append(outputs)
        self._running += len(outputs)

    def chunk_end(self, output: Output) -> bytes:
        """How a chunk with a choice of ``output`` ends."""
        if not self._include_all_usage:
            return _CHUNK_END
        generation = output.generation
        usage = count_usage(len(output.prompt.token_ids), generation.num_tokens, generation.cached_tokens)
        return b'],"usage":' + encode(usage) + b"}\n\n"

    def finish_one(self) -> None:
        """One generation has ended; the last one ends the stream."""
        self._running -= 1
        if self._running > 0:
            return
        if self._include_usage:
            usage = encode(reply_usage(self._groups))
            self.buffer.push(self.chunk_start + b'],"usage":' + usage + b"}\n\n")
        self._end()

    def fail(self, error: RequestError) -> None:
        """A generation has failed, which ends the stream for all."""
        self.buffer.push(b"data: " + encode(openai_error_event(error)) + b"\n\n")
        self._end()

    def _end(self) -> None:
        self.buffer.push(DONE)
        self.buffer.end()
