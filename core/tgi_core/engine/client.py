"""The API process's side of an engine: submits requests and hands each one's tokens to its sink."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import zmq
import zmq.asyncio

from tgi_core.config import EngineInfo
from tgi_core.engine.frames import (
    Cancel,
    Command,
    EngineStats,
    Finish,
    FinishRequest,
    RequestFailed,
    StepFrame,
    Submit,
    decode_message,
    encode,
    pack_ids,
    unpack_floats,
    unpack_ids,
    unpack_request_ids,
)
from tgi_core.errors import EngineUnavailableError, GenerationError, RequestError
from tgi_core.sampling.grammar import Grammar
from tgi_core.sampling.params import SamplingParams


class TokenSink(Protocol):
    """What receives a request's tokens; called on the event loop, in order, and must neither block nor raise."""

    def on_admitted(self, queue_seconds: float, cached_tokens: int) -> None:
        """The request has left the queue."""

    def on_prompt_logprobs(self, logprobs: Sequence[float]) -> None:
        """Log-probabilities of the prompt's tokens from the second on; once, before the first token, if asked for."""

    def on_top_tokens(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """The most likely tokens at the position of the next token, best first; before each ``on_token``, if asked."""

    def on_token(self, token_id: int, logprob: float, finish: Finish) -> None:
        """One more token; nothing follows once ``finish`` is set."""

    def on_error(self, error: RequestError) -> None:
        """The request has failed; nothing follows."""


class EngineClient:
    """Talks to one replica's engine over ZeroMQ.

    The supervisor says when an engine is up and where; between ``engine_down`` and the next ``engine_up`` submitting
    raises EngineUnavailableError. Each incarnation of an engine has an address of its own, so nothing that was meant
    for a dead one reaches its successor.

    Attributes:
        info: limits of the engine, None until the first one is up.
        stats: gauges after the latest step.
        on_step: called with each frame's stats, for metrics.
        trouble: why the server is not healthy: no engine is up, or it gives no sign of life; "" when all is well.
    """

    def __init__(self, on_step: Callable[[EngineStats], None] | None = None) -> None:
        self.info: EngineInfo | None = None
        self.stats = EngineStats()
        self.on_step = on_step
        self.trouble = "the engine is starting"
        self._context = zmq.asyncio.Context.instance()
        self._socket: zmq.asyncio.Socket | None = None
        self._receiver: asyncio.Task[None] | None = None
        self._sinks: dict[int, TokenSink] = {}
        self._next_id = 0
        self._late_compiles_before = 0

    @property
    def late_compiles(self) -> int:
        """Programs that were compiled while requests waited, in the engine that is up and in all before it."""
        return self._late_compiles_before + self.stats.late_compiles

    @property
    def is_up(self) -> bool:
        """Whether an engine takes requests. A suspected one still does: it may only be slow."""
        return self._socket is not None

    @property
    def in_flight(self) -> int:
        """Requests submitted and not ended."""
        return len(self._sinks)

    def engine_up(self, address: str, info: EngineInfo) -> None:
        """An engine listens at ``address``. Must run on the event loop."""
        self.info = info
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(address)
        self._receiver = asyncio.create_task(self._receive(self._socket))
        self.trouble = ""

    def engine_suspect(self, reason: str) -> None:
        """The engine gives no sign of life; it may still recover, so running requests are left alone."""
        self.trouble = reason

    def engine_recovered(self) -> None:
        """A suspected engine is alive after all."""
        if self._socket is not None:
            self.trouble = ""

    def engine_down(self, reason: str) -> None:
        """The engine is gone: every request in flight fails with one clear error."""
        self.trouble = reason
        if self._receiver is not None:
            self._receiver.cancel()
            self._receiver = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._late_compiles_before = self.late_compiles
        self.stats = EngineStats()
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.on_error(GenerationError(reason))

    def submit(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        sampling: SamplingParams,
        sink: TokenSink,
        *,
        ignore_eos: bool = False,
        grammar: Grammar | None = None,
        prompt_logprobs: bool = False,
        stop_token_ids: tuple[int, ...] = (),
    ) -> int:
        """Send a request; its tokens go to ``sink``. Returns its id.

        Raises:
            EngineUnavailableError: no engine is up.
        """
        if not self.is_up:
            raise EngineUnavailableError(f"The model is not available: {self.trouble}")
        self._next_id += 1
        request_id = self._next_id
        self._sinks[request_id] = sink
        self._send(
            Submit(
                request_id,
                pack_ids(prompt),
                max_new_tokens,
                sampling,
                ignore_eos=ignore_eos,
                grammar=grammar,
                prompt_logprobs=prompt_logprobs,
                stop_token_ids=stop_token_ids,
            )
        )
        return request_id

    def finish(self, request_id: int, num_tokens: int) -> None:
        """End a request after ``num_tokens`` output tokens; later ones are dropped."""
        if self._sinks.pop(request_id, None) is not None:
            self._send(FinishRequest(request_id, num_tokens))

    def cancel(self, request_id: int) -> None:
        """Give a request up: its place and blocks are free within one step."""
        if self._sinks.pop(request_id, None) is not None:
            self._send(Cancel(request_id))

    def close(self) -> None:
        """Fail what is in flight and close the connection."""
        self.engine_down("the server is shutting down")

    def _send(self, command: Command) -> None:
        if self._socket is not None:
            # The queue to the engine is unbounded (SNDHWM 0), so this cannot block; admission bounds what is in it.
            # It must be the asynchronous socket's send: it wakes the receiver, whose edge any send may have taken.
            self._socket.send(encode(command), zmq.NOBLOCK)

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            message = decode_message(await socket.recv())
            if isinstance(message, StepFrame):
                self._deliver(message)
            else:
                self._fail(message)

    def _deliver(self, frame: StepFrame) -> None:
        sinks = self._sinks
        for request_id, queue_seconds, cached_tokens in frame.admitted:
            sink = sinks.get(request_id)
            if sink is not None:
                sink.on_admitted(queue_seconds, cached_tokens)
        for request_id, logprobs in frame.prompt_logprobs:
            sink = sinks.get(request_id)
            if sink is not None:
                sink.on_prompt_logprobs(unpack_floats(logprobs))
        for request_id, top_ids, top_logprobs in frame.tops:
            # A frame holds one token of a request at most, so these are of the token that follows below.
            sink = sinks.get(request_id)
            if sink is not None:
                sink.on_top_tokens(unpack_ids(top_ids), unpack_floats(top_logprobs))
        for request_id, token_id, logprob, finish in zip(
            unpack_request_ids(frame.request_ids),
            unpack_ids(frame.token_ids),
            unpack_floats(frame.logprobs),
            frame.finishes,
            strict=True,
        ):
            # A request that was finished or cancelled here may still have tokens on the way.
            sink = sinks.get(request_id)
            if sink is None:
                continue
            if finish:
                del sinks[request_id]
            sink.on_token(token_id, logprob, _FINISHES[finish])
        self.stats = frame.stats
        if self.on_step is not None:
            self.on_step(frame.stats)

    def _fail(self, message: RequestFailed) -> None:
        sink = self._sinks.pop(message.request_id, None)
        if sink is not None:
            sink.on_error(GenerationError(message.message))


_FINISHES = tuple(Finish)
