"""The stream writer by itself: wake-ups, coalescing, keep-alive, disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tgi_api.sse import KEEP_ALIVE_S, EventBuffer, EventStream


class Peer:
    """The server's side of an ASGI connection.

    Attributes:
        bodies: what was sent, one entry a send.
        headers: of the response.
        complete: whether the last send said so.
        gone: set it to close the connection.
        reads: clear it to make sends wait.
        closed: calls of ``on_close``.
    """

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.headers: dict[str, str] = {}
        self.complete = False
        self.gone = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.closed = 0

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.start":
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        assert not self.complete
        self.bodies.append(message["body"])
        self.complete = not message["more_body"]

    def on_close(self) -> None:
        self.closed += 1


def run(scenario: Callable[[EventBuffer, Peer], Any], keep_alive_s: float = KEEP_ALIVE_S) -> Peer:
    """Send a stream while ``scenario`` acts on it."""

    async def both() -> Peer:
        peer, buffer = Peer(), EventBuffer()
        stream = EventStream(buffer, peer.on_close, {"x-more": "1"}, keep_alive_s)
        sending = asyncio.create_task(stream({}, peer.receive, peer.send))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await scenario(buffer, peer)
        await asyncio.wait_for(sending, 5)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a helper task is left"
        return peer

    return asyncio.run(both())


def test_what_is_pending_goes_out_in_one_send() -> None:
    async def scenario(buffer: EventBuffer, peer: Peer) -> None:
        buffer.push(b"a")
        buffer.push(b"b")
        await asyncio.sleep(0.01)
        buffer.push(b"c")
        buffer.end()

    peer = run(scenario)
    assert peer.bodies == [b"ab", b"c"]
    assert peer.complete
    assert peer.closed == 1
    assert peer.headers["content-type"] == "text/event-stream"
    assert peer.headers["x-more"] == "1"


def test_the_end_of_the_last_piece_can_be_replaced() -> None:
    async def scenario(buffer: EventBuffer, peer: Peer) -> None:
        buffer.push(b"one")
        buffer.push(b"two-open")
        buffer.replace_end(4, b"shut")
        buffer.end()

    assert run(scenario).bodies == [b"onetwo-shut"]


def test_nothing_follows_the_end() -> None:
    async def scenario(buffer: EventBuffer, peer: Peer) -> None:
        buffer.push(b"last")
        buffer.end()
        buffer.push(b"late")
        buffer.replace_end(4, b"late")

    assert run(scenario).bodies == [b"last"]


def test_silence_is_filled_with_comments() -> None:
    async def scenario(buffer: EventBuffer, peer: Peer) -> None:
        await asyncio.sleep(0.12)
        buffer.push(b"data")
        buffer.end()

    peer = run(scenario, keep_alive_s=0.05)
    assert peer.bodies == [b":\n\n", b":\n\n", b"data"]


def test_no_comment_while_events_flow() -> None:
    async def scenario(buffer: EventBuffer, peer: Peer) -> None:
        for _ in range(8):
            buffer.push(b"x")
            await asyncio.sleep(0.02)
        buffer.end()

    assert b":\n\n" not in run(scenario, keep_alive_s=0.1).bodies


def test_the_silence_that_proxies_bear() -> None:
    assert KEEP_ALIVE_S == 15


def test_a_disconnect_ends_the_stream_and_closes_once() -> None:
    async def scenario(buffer: EventBuffer, peer: Peer) -> None:
        buffer.push(b"a")
        await asyncio.sleep(0.01)
        peer.gone.set()

    peer = run(scenario)
    assert peer.bodies[0] == b"a"
    assert peer.closed == 1


def test_a_slow_client_gets_everything_in_few_sends() -> None:
    async def scenario(buffer: EventBuffer, peer: Peer) -> None:
        peer.reads.clear()
        for number in range(100):
            buffer.push(b"%d," % number)
            await asyncio.sleep(0)
        buffer.end()
        peer.reads.set()

    peer = run(scenario)
    assert b"".join(peer.bodies) == b"".join(b"%d," % number for number in range(100))
    assert len(peer.bodies) <= 2
