"""The load: many SSE streams against ``/v1/completions``, the same for every server.

Closed loop: each stream takes the next prompt as soon as its last one is answered. One raw connection a request; the
client looks for event boundaries and parses nothing else until a response is complete, since it may share the machine
with the server that it measures.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import cast

import msgspec

_EVENT = b"\ndata: "
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens":\s*(\d+)')
_TIMEOUT_S = 300.0


class ClientPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one client process does.

    Attributes:
        prompts: one request each.
        streams: requests that are open at once.
        starts_at: ``time.monotonic()`` of the first request, the same in all client processes.
    """

    host: str
    port: int
    model: str
    prompts: list[str]
    streams: int
    max_tokens: int
    starts_at: float


class LoadError(Exception):
    """A request of the load failed or ended early; the figures would mean nothing."""


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came back.

    Attributes:
        tokens: tokens received, as the servers count them.
        started_at, ended_at: ``time.monotonic()`` of the first request and the last token.
        ttft_ms: request to first token, one a request.
        gap_ms: token to next token, of all requests.
    """

    tokens: int
    started_at: float
    ended_at: float
    ttft_ms: list[float]
    gap_ms: list[float]

    @property
    def tokens_per_s(self) -> float:
        """All streams together, prefill included."""
        return self.tokens / (self.ended_at - self.started_at)

    @property
    def latency(self) -> str:
        """Percentiles for people."""
        return (
            f"first token p50 {percentile(self.ttft_ms, 50):.0f} ms, p99 {percentile(self.ttft_ms, 99):.0f} ms, "
            f"gap p50 {percentile(self.gap_ms, 50):.1f} ms, p99 {percentile(self.gap_ms, 99):.1f} ms"
        )


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that ``percent`` of all values do not exceed; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


class _Completion(asyncio.Protocol):
    """One request on one connection."""

    def __init__(self, request: bytes, ended: asyncio.Future[None]) -> None:
        self.arrivals: list[float] = []
        self.received = bytearray()
        self.sent_at = 0.0
        self._request = request
        self._ended = ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.sent_at = time.monotonic()
        cast(asyncio.WriteTransport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        # An event's first bytes may have come at the end of the previous read.
        search_from = max(0, len(self.received) - len(_EVENT) + 1)
        self.received += data
        self.arrivals.extend([now] * self.received.count(_EVENT, search_from))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._ended.set_exception(exc)
        else:
            self._ended.set_result(None)

    def count_tokens(self) -> int:
        """Tokens of the complete response."""
        usages = _COMPLETION_TOKENS.findall(self.received)
        if not self.received.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in self.received or not usages:
            raise LoadError(f"bad response: {bytes(self.received[:2000])!r}")
        return int(usages[-1])


async def _complete(plan: ClientPlan, prompt: str) -> _Completion:
    body = msgspec.json.encode(
        {
            "model": plan.model,
            "prompt": prompt,
            "max_tokens": plan.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "cache_prompt": False,
        }
    )
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {plan.host}:{plan.port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    completion = _Completion(head.encode() + body, ended)
    await loop.create_connection(lambda: completion, plan.host, plan.port)
    await ended
    return completion


async def run_client(plan: ClientPlan) -> LoadResult:
    """Run one client process's part.

    Raises:
        LoadError: a request failed or ended early.
        OSError: the server cannot be reached.
    """
    tokens = 0
    ended_at = 0.0
    ttft_ms: list[float] = []
    gap_ms: list[float] = []

    async def run_stream(prompts: Iterator[str]) -> None:
        nonlocal tokens, ended_at
        for prompt in prompts:
            completion = await _complete(plan, prompt)
            received = completion.count_tokens()
            # What follows the tokens are the events with the reason, the usage and the end.
            arrivals = completion.arrivals[:received]
            tokens += received
            ended_at = max(ended_at, arrivals[-1])
            ttft_ms.append((arrivals[0] - completion.sent_at) * 1e3)
            gap_ms.extend((after - before) * 1e3 for before, after in pairwise(arrivals))

    await asyncio.sleep(plan.starts_at - time.monotonic())
    prompts = iter(plan.prompts)
    started_at = time.monotonic()
    async with asyncio.timeout(_TIMEOUT_S):
        await asyncio.gather(*(run_stream(prompts) for _ in range(plan.streams)))
    return LoadResult(tokens=tokens, started_at=started_at, ended_at=ended_at, ttft_ms=ttft_ms, gap_ms=gap_ms)
