"""Server-sent events: one writer and one disconnect watch for each stream, bytes all the way.

The litestar handlers of the streaming routes return an ``EventStream``; it is sent by litestar without any of its
own encoding. What generates events pushes finished bytes into the stream's ``EventBuffer``; all that is pending when
the writer wakes goes out in one send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from litestar.response.base import ASGIResponse
from litestar.types import HTTPResponseBodyEvent, Receive, Scope, Send

KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b":\n\n"
DONE = b"data: [DONE]\n\n"

_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class EventBuffer:
    """Events that wait to be sent. Used on one event loop, by one writer."""

    __slots__ = ("_ended", "_pieces", "_waiter")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether no further event follows those pending."""
        return self._ended

    def push(self, piece: bytes) -> None:
        """Add bytes; the writer is woken once, however many follow before it runs. Ignored after the end."""
        if self._ended:
            return
        self._pieces.append(piece)
        if self._waiter is not None:
            self._wake()

    def replace_end(self, length: int, end: bytes) -> None:
        """Put ``end`` in place of the last ``length`` bytes; only within the call stack that pushed them."""
        if not self._ended:
            self._pieces[-1] = self._pieces[-1][:-length] + end

    def end(self) -> None:
        """Nothing follows; the writer sends what is pending and closes."""
        self._ended = True
        if self._waiter is not None:
            self._wake()

    def take(self) -> bytes:
        """All pending bytes."""
        pieces = self._pieces
        if len(pieces) == 1:
            body = pieces[0]
            pieces.clear()
            return body
        body = b"".join(pieces)
        pieces.clear()
        return body

    async def wait(self) -> None:
        """Return as soon as something is pending or the stream has ended."""
        if self._pieces or self._ended:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class EventStream(ASGIResponse):
    """The response of a streaming route.

    Args:
        buffer: where the events come from.
        on_close: called exactly once, when the stream is over for whatever reason: ended, client gone, cancelled.
        headers: in addition to those of every stream.
        keep_alive_s: silence after which a comment is sent, so that no proxy gives the connection up.
    """

    __slots__ = ("_buffer", "_keep_alive_s", "_on_close", "_sent_at")
    _should_set_content_length = False

    def __init__(
        self,
        buffer: EventBuffer,
        on_close: Callable[[], None],
        headers: dict[str, str],
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        super().__init__(headers=_HEADERS | headers, media_type="text/event-stream")
        # No charset parameter: TGI sends the bare type, and clients compare it.
        self.headers["content-type"] = "text/event-stream"
        self._buffer = buffer
        self._on_close = on_close
        self._keep_alive_s = keep_alive_s
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI
        """Send everything until the buffer ends or the client goes."""
        watch = asyncio.create_task(self._watch(receive))
        alarm = asyncio.create_task(self._keep_alive())
        try:
            await self.start_response(send)
            await self._write(send)
        finally:
            watch.cancel()
            alarm.cancel()
            self._on_close()

    async def _write(self, send: Send) -> None:
        buffer = self._buffer
        loop = asyncio.get_running_loop()
        more = True
        while more:
            await buffer.wait()
            more = not buffer.has_ended
            event: HTTPResponseBodyEvent = {
                "type": "http.response.body",
                "body": buffer.take(),
                "more_body": more,
            }
            await send(event)
            self._sent_at = loop.time()

    async def _watch(self, receive: Receive) -> None:
        # A server's send() returns silently after a disconnect; only receive() tells of it.
        while (await receive())["type"] != "http.disconnect":
            pass
        self._buffer.end()

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        self._sent_at = loop.time()
        while True:
            silent_s = loop.time() - self._sent_at
            if silent_s >= self._keep_alive_s:
                self._buffer.push(KEEP_ALIVE)
                silent_s = 0.0
            await asyncio.sleep(self._keep_alive_s - silent_s)
