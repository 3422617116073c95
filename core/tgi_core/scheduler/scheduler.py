"""Decides, step by step, what a shard computes: decodes first, the rest of the token budget for prefill chunks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from itertools import repeat

import msgspec

from tgi_core.contract import AppendedBlocks, KVBudget, NewSlot, StepPlan, StepResult
from tgi_core.scheduler.blocks import OutOfBlocksError
from tgi_core.scheduler.kv import KVCache
from tgi_core.scheduler.request import Finish, Request, RequestState
from tgi_core.scheduler.steps import Launched, Outputs, PlanBuilder


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What limits a step.

    Attributes:
        max_slots: requests that run at once.
        max_step_tokens: tokens a step computes.
        eos_token_ids: tokens that end a request.
        prefix_cache: share blocks of equal content.
        chunked_prefill: a prompt may be computed over several steps.
        mixed_batches: one step may hold both decodes and prefill chunks.
    """

    max_slots: int
    max_step_tokens: int
    eos_token_ids: frozenset[int]
    prefix_cache: bool = True
    chunked_prefill: bool = True
    mixed_batches: bool = True


class Scheduler:
    """Queue, running requests and KV blocks of one replica. Single-threaded; knows no device and no process.

    ``plan`` may be called before the results of earlier plans were given to ``apply``, as often as the shard may run
    ahead; results are applied in the order of their plans.

    Attributes:
        kv: the KV blocks.
        preemptions: how often a request has lost its slot.
        can_sit_out: a row may sit its sampling out: its last token can be computed a second time.
    """

    def __init__(self, config: SchedulerConfig, budget: KVBudget, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.kv = KVCache(budget, prefix_cache=config.prefix_cache)
        self.can_sit_out = not budget.has_states
        self.preemptions = 0
        self._admitted: list[Request] = []
        self._clock = clock
        self._step = 0
        self._queue: deque[Request] = deque()
        self._running: list[Request] = []
        self._launched: deque[Launched] = deque()
        self._free_slots = list(range(config.max_slots - 1, -1, -1))
        self._retired_slots: deque[tuple[int, int]] = deque()
        self._epochs = [0] * config.max_slots
        self._by_id: dict[tuple[bytes, int], Request] = {}
        # What the device tables must be told with the next plan; kept when a plan comes to nothing.
        self._new_slots: list[NewSlot] = []
        self._appended: list[AppendedBlocks] = []
        self._freed_slots: list[int] = []

    # -- what the outside asks for --------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._by_id[request.worker, request.request_id] = request
        self._queue.append(request)

    def cancel(self, worker: bytes, request_id: int) -> None:
        """Give a request up wherever it is. Unknown and ended ones are ignored, so this is idempotent."""
        request = self._by_id.get((worker, request_id))
        if request is not None:
            self._end(request)

    def finish(self, worker: bytes, request_id: int, num_tokens: int) -> None:
        """End a request after its first ``num_tokens`` output tokens; later ones do not count."""
        request = self._by_id.get((worker, request_id))
        if request is not None:
            del request.token_ids[request.prompt_len + num_tokens :]
            self._end(request)

    def constrained_rows(self) -> list[tuple[int, Request]]:
        """Of the step launched last, the rows that sample under a constraint, and whose they are.

        The rows are counted among those that sample. Requests that have ended meanwhile are left out.
        """
        launched = self._launched[-1]
        sampled = [request for request, samples in zip(launched.requests, launched.samples, strict=True) if samples]
        return [
            (row, request)
            for row, request in enumerate(sampled)
            if request.matcher is not None and request.state is not RequestState.FINISHED
        ]

    def sit_out(self, requests: Collection[Request]) -> None:
        """These requests get no token from the step launched last; they compute their last one again."""
        launched = self._launched[-1]
        for row, request in enumerate(launched.requests):
            if launched.samples[row] and request in requests:
                launched.samples[row] = False
                launched.q_lens[row] -= 1
                request.total -= 1
                request.in_flight -= 1
                request.computed -= 1

    def take_admitted(self) -> list[Request]:
        """The requests that have left the queue for the first time since the last call."""
        admitted, self._admitted = self._admitted, []
        return admitted

    def cancel_worker(self, worker: bytes) -> list[int]:
        """Give up all requests of an API process; returns their numbers."""
        requests = [request for request in self._by_id.values() if request.worker == worker]
        for request in requests:
            self._end(request)
        return [request.request_id for request in requests]

    @property
    def queue_size(self) -> int:
        """Requests that wait for a slot."""
        return len(self._queue)

    @property
    def batch_size(self) -> int:
        """Requests that hold a slot."""
        return len(self._running)

    @property
    def batch_tokens(self) -> int:
        """Tokens in the running requests' caches."""
        return sum(request.computed + len(request.encoder_ids) for request in self._running)

    @property
    def has_requests(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._by_id)

    # -- planning ---------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can be computed before more results are in."""
        if not self._launched:
            self._free_retired(self._step)
        builder = PlanBuilder(self.config.max_step_tokens, self._new_slots, self._appended)
        builder.encoder_budget -= sum(len(new.encoder_ids) for new in self._new_slots)
        step = self._step + 1
        if self.config.mixed_batches:
            self._plan_decodes(builder, step)
            num_decodes = len(builder.slots)
            self._plan_prefills(builder, step)
        else:
            self._plan_prefills(builder, step)
            num_decodes = 0
            if not builder.slots:
                self._plan_decodes(builder, step)
                num_decodes = len(builder.slots)
        if not builder.slots:
            return None
        self._step = step
        plan = StepPlan(
            step=step,
            slots=builder.slots,
            epochs=builder.epochs,
            q_lens=builder.q_lens,
            kv_lens=builder.kv_lens,
            samples=builder.samples,
            num_decodes=num_decodes,
            tier=builder.tier,
            new_slots=builder.new_slots,
            appended_blocks=builder.appended,
            late=builder.late,
            prompt_logprobs=builder.prompt_logprobs,
            freed_slots=self._freed_slots,
        )
        self._launched.append(Launched(step, builder.requests, plan))
        self._new_slots, self._appended, self._freed_slots = [], [], []
        return plan

    def _plan_decodes(self, builder: PlanBuilder, step: int) -> None:
        # A snapshot: making room may preempt requests further back in the list.
        for request in list(self._running):
            if request.total - request.computed != 1 or request.state is not RequestState.RUNNING:
                continue
            if request.total >= request.max_tokens or builder.budget == 0:
                # The last token is already on its way: a length finish is foreseen and never runs ahead.
                continue
            if request.computed >= request.capacity and not self._make_room(request, request.computed + 1, builder):
                continue
            builder.add_row(request, 1, step)

    def _plan_prefills(self, builder: PlanBuilder, step: int) -> None:
        for request in list(self._running):
            remaining = request.total - request.computed
            if remaining > 1 and request.state is RequestState.RUNNING:
                self._plan_chunk(request, builder, step)
        if self._free_slots and self._queue:
            self._admit(builder, step)

    def _plan_chunk(self, request: Request, builder: PlanBuilder, step: int) -> None:
        remaining = request.total - request.computed
        q_len = min(remaining, builder.budget)
        if q_len == 0 or (q_len < remaining and not self.config.chunked_prefill):
            return
        if self._make_room(request, request.computed + q_len, builder):
            builder.add_row(request, q_len, step)

    def _admit(self, builder: PlanBuilder, step: int) -> None:
        """Move requests from the queue to slots, in order, as long as slots, budget and blocks allow."""
        skipped: list[Request] = []
        promised = self._promised_blocks()
        while self._queue and self._free_slots and builder.budget > 0:
            request = self._queue.popleft()
            if self.kv.waits_for_other(request):
                skipped.append(request)
                continue
            if not self._fits(request, builder, promised):
                self._queue.appendleft(request)
                break
            promised += self._enter_slot(request, builder)
            self._plan_chunk(request, builder, step)
        self._queue.extendleft(reversed(skipped))

    def _fits(self, request: Request, builder: PlanBuilder, promised: int) -> bool:
        if not self.config.chunked_prefill and request.total > builder.budget:
            return False
        if len(request.encoder_ids) > builder.encoder_budget:
            return False
        # With nothing running the cache is this request's alone, and the limits say that one request always fits.
        return not self._running or self.kv.has_room(request, promised)

    def _promised_blocks(self) -> int:
        """Blocks that running requests still need for tokens they already have."""
        return sum(
            max(0, self.kv.num_blocks_for(request.total + 1) - self.kv.num_blocks_for(request.capacity))
            for request in self._running
            if request.total - request.computed > 1
        )

    def _enter_slot(self, request: Request, builder: PlanBuilder) -> int:
        """Give the request a slot and its cached prefix; returns the blocks it will still need."""
        slot = self._free_slots.pop()
        self._epochs[slot] += 1
        request.slot = slot
        request.epoch = self._epochs[slot]
        request.state = RequestState.RUNNING
        cached_len = self.kv.match_prefix(request)
        request.computed = request.collected = cached_len
        self.kv.announce(request)
        self._running.append(request)
        if not request.was_admitted:
            request.was_admitted = True
            request.cached_len = cached_len
            request.admitted_at = self._clock()
            self._admitted.append(request)
        builder.enter(request)
        builder.appended.extend(self.kv.matched_blocks(request))
        builder.appended.extend(self.kv.hold_encoder(request))
        return self.kv.num_blocks_for(request.total + 1) - self.kv.num_blocks_for(cached_len)

    # -- blocks -----------------------------------------------------------------------------------------------------

    def _make_room(self, request: Request, num_tokens: int, builder: PlanBuilder) -> bool:
        """Get blocks for ``num_tokens``, preempting younger requests that this plan does not hold yet."""
        while True:
            try:
                builder.appended.extend(self.kv.extend(request, num_tokens))
            except OutOfBlocksError:
                if not self._preempt_younger(request, builder):
                    return False
            else:
                return True

    def _preempt_younger(self, request: Request, builder: PlanBuilder) -> bool:
        planned = set(builder.slots)
        for candidate in reversed(self._running):
            if candidate is request:
                break
            if candidate.slot not in planned:
                self._preempt(candidate)
                return True
        return False

    def _preempt(self, request: Request) -> None:
        """Take slot and blocks away; back at the front of the queue, the request computes everything again."""
        self.preemptions += 1
        self._leave_slot(request)
        request.state = RequestState.PREEMPTED
        if request.in_flight == 0:
            self._requeue(request)

    def _requeue(self, request: Request) -> None:
        request.state = RequestState.WAITING
        self._queue.appendleft(request)

    def _leave_slot(self, request: Request) -> None:
        if request.last_step == 0:
            # No row of it was ever planned: what the next plan would say of its slot is no longer true.
            self._new_slots[:] = [new for new in self._new_slots if new.slot != request.slot]
            self._appended[:] = [entry for entry in self._appended if entry.slot != request.slot]
        self.kv.release(request)
        self._running.remove(request)
        self._retired_slots.append((request.last_step, request.slot))
        self._freed_slots.append(request.slot)
        request.leave_slot()

    def _end(self, request: Request) -> None:
        del self._by_id[request.worker, request.request_id]
        if request.state is RequestState.RUNNING:
            self._leave_slot(request)
        elif request.state is RequestState.WAITING:
            self._queue.remove(request)
        request.state = RequestState.FINISHED

    # -- results ----------------------------------------------------------------------------------------------------

    def apply(self, result: StepResult) -> Outputs:
        """Take the result of the oldest plan that has none yet."""
        launched = self._launched.popleft()
        assert launched.step == result.step, "steps are collected in the order of their launch"
        outputs = Outputs()
        if result.prompt_logprobs:
            self._take_prompt_logprobs(launched, result)
        tops = result.tops or repeat(None, len(result.token_ids))
        tokens = iter(zip(result.token_ids, result.logprobs, tops, strict=True))
        for request, epoch, q_len, samples in zip(
            launched.requests, launched.epochs, launched.q_lens, launched.samples, strict=True
        ):
            if request.epoch == epoch:
                # Before the token is appended: an ending request gives its blocks back, the full ones to the cache.
                request.collected += q_len
                self.kv.register_collected(request)
            if samples:
                token_id, logprob, top = next(tokens)
                if request.state is not RequestState.FINISHED:
                    self._append_token(request, token_id, logprob, outputs)
                    if result.tops:
                        outputs.tops.append(top)
        self._free_retired(result.step)
        return outputs

    @staticmethod
    def _take_prompt_logprobs(launched: Launched, result: StepResult) -> None:
        whose = dict(zip(zip(launched.slots, launched.epochs, strict=True), launched.requests, strict=True))
        for part in result.prompt_logprobs:
            request = whose[part.slot, part.epoch]
            known = request.prompt_logprobs
            assert known is not None, "only rows that ask are answered"
            # A preempted prompt is computed from its beginning again. The first token has no log-probability.
            known[part.start - 1 :] = part.logprobs
            del known[request.prompt_len - 1 :]

    def _append_token(self, request: Request, token_id: int, logprob: float, outputs: Outputs) -> None:
        request.token_ids.append(token_id)
        request.in_flight -= 1
        finish = Finish.NOT
        if len(request.token_ids) >= request.max_tokens:
            finish = Finish.LENGTH
        elif token_id in self.config.eos_token_ids and (not request.ignore_eos or request.matcher is not None):
            # Behind the end of what it must match a request has nothing to say.
            finish = Finish.EOS
        elif token_id in request.stop_token_ids and request.num_output_tokens > request.sampling.min_tokens:
            finish = Finish.STOP_TOKEN
        if request.prompt_logprobs is not None and len(request.token_ids) == request.prompt_len + 1:
            outputs.prompts.append(request)
        outputs.requests.append(request)
        outputs.token_ids.append(token_id)
        outputs.logprobs.append(logprob)
        outputs.finishes.append(finish)
        if finish:
            self._end(request)
        elif request.state is RequestState.PREEMPTED and request.in_flight == 0:
            self._requeue(request)

    def _free_retired(self, collected_step: int) -> None:
        """Slots become free once every launched step that names them is collected."""
        while self._retired_slots and self._retired_slots[0][0] <= collected_step:
            self._free_slots.append(self._retired_slots.popleft()[1])
