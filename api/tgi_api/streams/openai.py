"""What the streams of the two OpenAI routes have in common: the frame around a piece of text, usage, the end."""

from __future__ import annotations

import msgspec

from tgi_api.reply import ReplyHead
from tgi_api.schemas.error import OpenAIErrorDetail, OpenAIStreamError
from tgi_api.schemas.openai import Usage
from tgi_api.sse import DONE, EventBuffer
from tgi_core.errors import RequestError

encode = msgspec.json.Encoder().encode


CHUNK_END = b'],"usage":null}\n\n'


class OpenAIStream:
    """A stream that one or several generations share: what its chunks begin with, and how it ends.

    Attributes:
        buffer: where the events go.
        chunk_start: a chunk's event up to its choices.
    """

    __slots__ = ("_include_usage", "_running", "_usage", "buffer", "chunk_start")

    def __init__(self, buffer: EventBuffer, head: ReplyHead, num_generations: int, *, include_usage: bool) -> None:
        self.buffer = buffer
        self.chunk_start = b"data: " + encode(head)[:-1] + b',"choices":['
        self._running = num_generations
        self._include_usage = include_usage
        self._usage = (0, 0)

    def finish_one(self, prompt_tokens: int, completion_tokens: int) -> None:
        """One generation has ended; the last one ends the stream."""
        self._usage = (self._usage[0] + prompt_tokens, self._usage[1] + completion_tokens)
        self._running -= 1
        if self._running > 0:
            return
        if self._include_usage:
            usage = encode(Usage(*self._usage, sum(self._usage)))
            self.buffer.push(self.chunk_start + b'],"usage":' + usage + b"}\n\n")
        self._end()

    def fail(self, error: RequestError) -> None:
        """A generation has failed, which ends the stream for all."""
        body = OpenAIStreamError(OpenAIErrorDetail(str(error), error.status))
        self.buffer.push(b"data: " + encode(body) + b"\n\n")
        self._end()

    def _end(self) -> None:
        self.buffer.push(DONE)
        self.buffer.end()
