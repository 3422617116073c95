"""The engine's loop: plans and launches step n+1 while the device runs step n.

One iteration: take in commands, plan, launch, then collect the oldest step if more are in flight than the shard may
run ahead. Depth 0 is the same code with nothing kept in flight.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from tgi_core.contract import ModelShard, StepPlan, Ticket
from tgi_core.engine.constrained import ConstrainedRequests, Failure
from tgi_core.engine.frames import (
    Cancel,
    Command,
    EngineMessage,
    EngineStats,
    Finish,
    FinishRequest,
    RequestFailed,
    Submit,
    unpack_ids,
)
from tgi_core.engine.idle import IdleTime
from tgi_core.engine.step_frames import make_frames
from tgi_core.scheduler import Outputs, Request, Scheduler

if TYPE_CHECKING:
    from tgi_core.sampling.grammar import Constraints

IDLE_POLL_MS = 200
"""How long an idle loop sleeps before it looks at its stop flag again."""

PREPARING_POLL_MS = 2
"""The same while a request waits for its matcher."""

_MASK_SHARE = 0.75
"""Share of a step's time that its rows may wait for masks: as long as the device still computes, waiting is free."""

_LEAST_PATIENCE_S = 0.002

_STUCK = "the API process did not read its results for too long"


class Channel(Protocol):
    """How the loop talks to API processes."""

    def receive(self, timeout_ms: int) -> list[tuple[bytes, Command]]:
        """Commands that have arrived, waiting at most ``timeout_ms`` for the first."""

    def send(self, worker: bytes, message: EngineMessage) -> bool:
        """Send without blocking; false when the worker is gone or stuck."""


class _InFlight:
    """A launched step."""

    __slots__ = ("launched_at", "plan", "plan_seconds", "ticket")

    def __init__(self, plan: StepPlan, ticket: Ticket, plan_seconds: float, launched_at: float) -> None:
        self.plan = plan
        self.ticket = ticket
        self.plan_seconds = plan_seconds
        self.launched_at = launched_at


class EngineLoop:
    """Drives one shard for the requests of all API processes.

    Args:
        shard, scheduler, channel: what it drives, and for whom.
        run_ahead: steps launched before the oldest is collected.
        max_total_tokens: longest sequence of a slot.
        constraints: structured output; None where there is none.
        decoder_prompt: of a model with an encoder, what every output follows; prompts go to the encoder then.
        max_encoder_tokens: its longest input.

    Attributes:
        busy_since: monotonic time since which the device has worked on the oldest step, or None; a watchdog reads it.
        longest_step_s: longest time between two collects of a busy device, or a launch and its collect.
        num_steps: steps collected so far.
    """

    def __init__(
        self,
        shard: ModelShard,
        scheduler: Scheduler,
        channel: Channel,
        *,
        run_ahead: int,
        max_total_tokens: int,
        constraints: Constraints | None = None,
        decoder_prompt: Sequence[int] = (),
        max_encoder_tokens: int = 0,
    ) -> None:
        self.busy_since: float | None = None
        self.longest_step_s = 0.0
        self.num_steps = 0
        self._shard = shard
        self._scheduler = scheduler
        self._channel = channel
        self._run_ahead = run_ahead
        self._max_total_tokens = max_total_tokens
        self._decoder_prompt = tuple(decoder_prompt)
        self._max_encoder_tokens = max_encoder_tokens
        self._constrained = ConstrainedRequests(constraints)
        self._in_flight: deque[_InFlight] = deque()
        self._step_seconds = 0.0
        """What the device took for the step collected last."""
        self._unsent: list[tuple[bytes, EngineMessage]] = []
        self._workers: set[bytes] = set()
        self._given_up: dict[bytes, list[int]] = {}
        self._stats = EngineStats()
        self._stats_are_stale = False
        self._idle_time = IdleTime(shard)
        self._stopping = False

    @property
    def has_work(self) -> bool:
        """Whether steps are in flight, or something is still to be told."""
        return bool(self._in_flight or self._unsent or self._stats_are_stale)

    def stop(self) -> None:
        """Let ``run`` return after the present iteration; callable from any thread."""
        self._stopping = True

    def run(self) -> None:
        """Serve until ``stop``. An exception of the shard passes through: it is a fault of the whole replica."""
        while not self._stopping:
            self.iterate(IDLE_POLL_MS)

    def iterate(self, idle_timeout_ms: int = 0) -> None:
        """One iteration; sleeps up to ``idle_timeout_ms`` when there is nothing at all to do."""
        idle = not self.has_work and not self._scheduler.has_requests
        if idle:
            idle_timeout_ms = self._idle_time.use(idle_timeout_ms)
        else:
            self._idle_time.end()
        if self._constrained.is_preparing:
            idle_timeout_ms = min(idle_timeout_ms, PREPARING_POLL_MS)
        for worker, command in self._channel.receive(idle_timeout_ms if idle else 0):
            self._handle(worker, command)
        if self._constrained.is_preparing:
            self._add_prepared()
        planned_from = time.monotonic()
        plan = self._scheduler.plan()
        if plan is not None:
            self._launch(plan, planned_from)
        # After the launch, so that sending costs the device nothing.
        self._send_frames()
        if self._given_up:
            self._tell_given_up()
        if plan is not None and plan.late:
            self._sample_late()
        if len(self._in_flight) > self._run_ahead or (plan is None and self._in_flight):
            self._collect()
        elif plan is None and self._stats_are_stale:
            self._tell_idle_stats()

    def _handle(self, worker: bytes, command: Command) -> None:
        self._workers.add(worker)
        match command:
            case Submit():
                self._submit(worker, command)
            case FinishRequest():
                self._stats_are_stale = True
                self._scheduler.finish(worker, command.request_id, command.num_tokens)
            case Cancel():
                self._stats_are_stale = True
                self._constrained.forget(worker, command.request_id)
                self._scheduler.cancel(worker, command.request_id)

    def _submit(self, worker: bytes, command: Submit) -> None:
        prompt, encoder_ids = unpack_ids(command.prompt).tolist(), []
        longest = self._max_total_tokens - 1
        if self._decoder_prompt:
            prompt, encoder_ids = list(self._decoder_prompt), prompt
            longest = self._max_encoder_tokens
        if not 0 < len(encoder_ids or prompt) <= longest or command.max_new_tokens < 1:
            # The API process validates; what arrives here in spite of that must not hang its client.
            message = f"a prompt of {len(encoder_ids or prompt)} tokens does not fit a context of {longest + 1}"
            self._channel.send(worker, RequestFailed(command.request_id, message))
            return
        room = self._max_total_tokens - len(prompt)
        request = Request(
            worker,
            command.request_id,
            prompt,
            min(command.max_new_tokens, room),
            command.sampling,
            ignore_eos=command.ignore_eos,
            prompt_logprobs=command.prompt_logprobs,
            stop_token_ids=command.stop_token_ids,
            submitted_at=time.monotonic(),
            encoder_ids=encoder_ids,
        )
        if command.grammar is None:
            self._scheduler.add(request)
            return
        refusal = self._constrained.prepare(request, command.grammar)
        if refusal:
            self._channel.send(worker, RequestFailed(command.request_id, refusal))

    def _add_prepared(self) -> None:
        ready, failed = self._constrained.take_prepared()
        for request in ready:
            self._scheduler.add(request)
        self._fail(failed)

    def _fail(self, failures: list[Failure]) -> None:
        """End requests that cannot go on; each of them alone."""
        for request, reason in failures:
            self._scheduler.cancel(request.worker, request.request_id)
            self._unsent.append((request.worker, RequestFailed(request.request_id, reason)))

    def _launch(self, plan: StepPlan, planned_from: float) -> None:
        launched_at = time.monotonic()
        if self.busy_since is None:
            self.busy_since = launched_at
        ticket = self._shard.launch(plan)
        if not plan.late:
            self._shard.sample(ticket, None)
        self._in_flight.append(_InFlight(plan, ticket, launched_at - planned_from, launched_at))

    def _sample_late(self) -> None:
        """Sample the step launched last, whose masks follow from the tokens of the step before.

        While these are awaited and the masks are made the device computes the step's forward.
        """
        step = self._in_flight[-1]
        while self._in_flight[0] is not step:
            self._collect()
        rows = self._scheduler.constrained_rows()
        if not rows:
            self._shard.sample(step.ticket, None)
            return
        patience_s = threading.TIMEOUT_MAX
        if self._scheduler.can_sit_out:
            patience_s = max(_LEAST_PATIENCE_S, _MASK_SHARE * self._step_seconds)
        late, skipped, failed = self._constrained.make_masks(rows, sum(step.plan.samples), patience_s)
        self._scheduler.sit_out(skipped)
        self._shard.sample(step.ticket, late)
        self._fail(failed)

    def _collect(self) -> None:
        step = self._in_flight.popleft()
        result = self._shard.collect(step.ticket)
        now = time.monotonic()
        if self.busy_since is not None:
            self._step_seconds = now - self.busy_since
            self.longest_step_s = max(self.longest_step_s, self._step_seconds)
        # The device turns to the next step only now, so its time starts here.
        self.busy_since = now if self._in_flight else None
        self.num_steps += 1
        outputs = self._scheduler.apply(result)
        failed = self._constrained.advance(outputs) if step.plan.late else []
        self._stats = replace(
            self._measure(step.plan),
            step_ms=(now - step.launched_at) * 1000,
            device_ms=self._step_seconds * 1000,
            plan_ms=step.plan_seconds * 1000,
            apply_ms=(time.monotonic() - now) * 1000,
            ended=len(outputs.finishes) - outputs.finishes.count(Finish.NOT),
        )
        self._unsent.extend(
            make_frames(step.plan.step, outputs, self._scheduler.take_admitted(), self._stats, self._workers)
        )
        self._fail(failed)

    def _measure(self, plan: StepPlan | None) -> EngineStats:
        scheduler = self._scheduler
        pool = scheduler.kv.main_pool
        num_decodes = plan.num_decodes if plan is not None else 0
        encoded = sum(len(new.encoder_ids) for new in plan.new_slots) if plan is not None else 0
        return EngineStats(
            queue_size=scheduler.queue_size,
            batch_size=scheduler.batch_size,
            batch_tokens=scheduler.batch_tokens,
            kv_blocks_used=pool.num_used,
            kv_blocks=pool.num_blocks,
            preemptions=scheduler.preemptions,
            prefill_tokens=encoded + sum(plan.q_lens) - num_decodes if plan is not None else 0,
            decode_tokens=num_decodes,
            started=len(plan.new_slots) if plan is not None else 0,
            late_compiles=self._shard.late_compiles,
        )

    def _tell_idle_stats(self) -> None:
        """Requests that were given up end without a token; without this the gauges would keep their last values."""
        self._stats_are_stale = False
        self._stats = self._measure(None)
        self._unsent.extend(make_frames(0, Outputs(), [], self._stats, self._workers))

    def _send_frames(self) -> None:
        if not self._unsent:
            return
        for worker, message in self._unsent:
            if worker in self._given_up or not self._channel.send(worker, message):
                # Gone, or so far behind that its frames fill the queue: its requests would only burn the device.
                self._given_up.setdefault(worker, []).extend(self._scheduler.cancel_worker(worker))
                self._constrained.forget(worker)
        self._unsent = []

    def _tell_given_up(self) -> None:
        """Once a stuck API process reads again, its clients must not wait for what was given up."""
        for worker, request_ids in list(self._given_up.items()):
            while request_ids and self._channel.send(worker, RequestFailed(request_ids[-1], _STUCK)):
                request_ids.pop()
            if not request_ids:
                del self._given_up[worker]
                self._stats_are_stale = True
