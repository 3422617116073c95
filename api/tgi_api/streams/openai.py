"""What the streams of the two OpenAI routes have in common: the frame around a piece of text, usage, the end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tgi_api.error_replies import openai_error_event
from tgi_api.output import Prompt
from tgi_api.reply import ReplyHead, count_usage
from tgi_api.sse import DONE, EventBuffer
from tgi_core.errors import RequestError

encode = msgspec.json.Encoder().encode


CHUNK_END = b'],"usage":null}\n\n'


class OpenAIStream:
    """A stream that one or several generations share: what its chunks begin with, and how it ends.

    Args:
        buffer: where the events go.
        head: what every chunk begins with.
        prompts: what the generations start from.
        include_usage: whether the token counts come at the end.

    Attributes:
        buffer: where the events go.
        chunk_start: a chunk's event up to its choices.
    """

    __slots__ = ("_completion_tokens", "_include_usage", "_prompt_tokens", "_running", "buffer", "chunk_start")

    def __init__(self, buffer: EventBuffer, head: ReplyHead, prompts: Sequence[Prompt], *, include_usage: bool) -> None:
        self.buffer = buffer
        self.chunk_start = b"data: " + encode(head)[:-1] + b',"choices":['
        self._running = sum(prompt.options.n for prompt in prompts)
        self._include_usage = include_usage
        self._prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        self._completion_tokens = 0

    def finish_one(self, completion_tokens: int) -> None:
        """One generation has ended; the last one ends the stream."""
        self._completion_tokens += completion_tokens
        self._running -= 1
        if self._running > 0:
            return
        if self._include_usage:
            usage = encode(count_usage(self._prompt_tokens, self._completion_tokens))
            self.buffer.push(self.chunk_start + b'],"usage":' + usage + b"}\n\n")
        self._end()

    def fail(self, error: RequestError) -> None:
        """A generation has failed, which ends the stream for all."""
        self.buffer.push(b"data: " + encode(openai_error_event(error)) + b"\n\n")
        self._end()

    def _end(self) -> None:
        self.buffer.push(DONE)
        self.buffer.end()
