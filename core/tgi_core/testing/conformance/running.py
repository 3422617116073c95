"""A shard under test: started through ``Backend.create_shard`` alone, and driven by the core's own scheduler.

The scheduler reads the capabilities, so the same requests run on every class of device.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tgi_core.contract import (
    Backend,
    Capabilities,
    KVBudget,
    LateInputs,
    ModelShard,
    ShardLimits,
    ShardSpec,
    StepPlan,
    StepResult,
    Ticket,
    TopTokens,
)
from tgi_core.engine.attention import AUTO, choose_attention
from tgi_core.sampling.grammar import Matcher
from tgi_core.sampling.params import SamplingParams
from tgi_core.scheduler import Scheduler, SchedulerConfig
from tgi_core.scheduler.request import Request
from tgi_core.testing.conformance.comparison import ConformanceError
from tgi_core.testing.conformance.models.sizes import MAX_POSITIONS, VOCAB_SIZE

MAX_SLOTS = 6
NEW_TOKENS = 8
_DECODER_START = 2
_TOTAL_TOKENS = 320
STEP_TOKENS = 64
_CACHE_BYTES = 256 << 20
_MOST_IDLE_STEPS = 100


class Ask(NamedTuple):
    """A request.

    Attributes:
        prompt: its tokens.
        num_tokens: how many to make.
        sampling: greedy by default.
        prompt_logprobs: ask for those of the prompt.
        allowed: the only tokens that a mask allows, at every position; None for no mask.
        encoder_ids: what the encoder reads, for a model that has one.
    """

    prompt: list[int]
    num_tokens: int
    sampling: SamplingParams = SamplingParams()
    prompt_logprobs: bool = False
    allowed: tuple[int, ...] | None = None
    encoder_ids: tuple[int, ...] = ()

    def request(self, number: int) -> Request:
        """As the scheduler takes it."""
        request = Request(
            b"",
            number,
            list(self.prompt),
            self.num_tokens,
            self.sampling,
            prompt_logprobs=self.prompt_logprobs,
            encoder_ids=self.encoder_ids,
        )
        if self.allowed is not None:
            request.matcher = _AnyMatcher()
        return request


class Reply:
    """What came out of a request."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.tops: list[TopTokens | None] = []
        self.prompt_logprobs: list[float] = []
        self.cached_len = 0

    @property
    def label(self) -> str:
        """For messages."""
        tokens = len(self.ask.encoder_ids or self.ask.prompt)
        return f"the request of {tokens} prompt tokens"


class Running(NamedTuple):
    """A started shard.

    Attributes:
        shard: loaded and warmed up.
        budget: what it has allocated.
        capabilities: of its backend.
        limits: what it was given.
    """

    shard: ModelShard
    budget: KVBudget
    capabilities: Capabilities
    limits: ShardLimits

    @property
    def chunks_prompts(self) -> bool:
        """Whether a prompt may be computed over several steps: the backend and the model let it be."""
        return may_chunk(self.capabilities, self.shard)

    def scheduler(
        self, *, prefix_cache: bool = False, step_tokens: int | None = None, eos: frozenset[int] = frozenset()
    ) -> Scheduler:
        """A scheduler that adapts to the capabilities; fewer tokens a step only where prompts may be cut."""
        capabilities, chunks = self.capabilities, self.chunks_prompts
        if step_tokens is None or not chunks or self.budget.max_encoder_tokens:
            # Whole prompts, and inputs of an encoder, fit the largest step alone.
            step_tokens = self.limits.max_step_tokens
        config = SchedulerConfig(
            max_slots=self.limits.max_slots,
            max_step_tokens=step_tokens,
            eos_token_ids=eos,
            prefix_cache=prefix_cache and capabilities.prefix_cache,
            chunked_prefill=chunks,
            mixed_batches=capabilities.mixed_batches,
        )
        return Scheduler(config, self.budget)

    def serve(
        self,
        asks: Sequence[Ask],
        *,
        step_tokens: int | None = None,
        run_ahead: int | None = None,
        prefix_cache: bool = False,
        skip_every: int = 0,
        idles: bool = False,
        watch: Callable[[Request, int], None] | None = None,
    ) -> list[Reply]:
        """Serve the requests together.

        Args:
            asks: the requests.
            step_tokens: tokens of a step.
            run_ahead: steps launched before the oldest is collected; what is declared by default.
            prefix_cache: share blocks, where that is declared.
            skip_every: let the constrained rows of every so many steps sit their sampling out; 0 for none.
            idles: give the shard idle time after each step that leaves none in flight.
            watch: called with each request that gets a token and the slot it had.

        Raises:
            ConformanceError: requests come to no end, or a result does not fit its plan.
        """
        scheduler = self.scheduler(prefix_cache=prefix_cache, step_tokens=step_tokens)
        replies = [Reply(ask) for ask in asks]
        for number, ask in enumerate(asks):
            scheduler.add(ask.request(number))
        driver = _Driver(self.shard, scheduler, replies, skip_every=skip_every, idles=idles, watch=watch)
        driver.run(self.capabilities.run_ahead if run_ahead is None else run_ahead)
        return replies


class _Driver:
    """Plans, launches and collects until nothing is left."""

    def __init__(
        self,
        shard: ModelShard,
        scheduler: Scheduler,
        replies: list[Reply],
        *,
        skip_every: int,
        idles: bool,
        watch: Callable[[Request, int], None] | None,
    ) -> None:
        self._shard = shard
        self._scheduler = scheduler
        self._replies = replies
        self._skip_every = skip_every
        self._idles = idles
        self._watch = watch
        self._in_flight: deque[tuple[StepPlan, Ticket]] = deque()

    def run(self, run_ahead: int) -> None:
        idle = 0
        while self._scheduler.has_requests or self._in_flight:
            plan = self._scheduler.plan()
            if plan is not None:
                ticket = self._shard.launch(plan)
                self._in_flight.append((plan, ticket))
                self._sample(plan, ticket)
            if len(self._in_flight) > run_ahead or (plan is None and self._in_flight):
                self._collect()
            if self._idles and not self._in_flight:
                self._shard.use_idle_time()
            idle = 0 if plan is not None else idle + 1
            if idle > _MOST_IDLE_STEPS:
                raise ConformanceError("Requests come to no end: the scheduler can plan no further step for them.")

    def _sample(self, plan: StepPlan, ticket: Ticket) -> None:
        if not plan.late:
            self._shard.sample(ticket, None)
            return
        # Masks follow from known tokens: everything before the step is collected first.
        while self._in_flight[0][1] is not ticket:
            self._collect()
        rows = self._scheduler.constrained_rows()
        skips = self._skip_every and plan.step % self._skip_every == 0 and self._scheduler.can_sit_out
        if skips:
            self._scheduler.sit_out([request for _, request in rows])
            self._shard.sample(ticket, LateInputs([], b"", [row for row, _ in rows]))
            return
        masks = b"".join(_mask(self._replies[request.request_id].ask.allowed) for _, request in rows)
        self._shard.sample(ticket, LateInputs([row for row, _ in rows], masks))

    def _collect(self) -> None:
        plan, ticket = self._in_flight.popleft()
        result = self._shard.collect(ticket)
        check_result(plan, result)
        slots = iter(result.slots)
        outputs = self._scheduler.apply(result)
        tops = outputs.tops or [None] * len(outputs.token_ids)
        for request, token_id, logprob, top in zip(
            outputs.requests, outputs.token_ids, outputs.logprobs, tops, strict=True
        ):
            reply = self._replies[request.request_id]
            reply.token_ids.append(token_id)
            reply.logprobs.append(logprob)
            reply.tops.append(top)
            reply.cached_len = request.cached_len
            if request.prompt_logprobs is not None:
                reply.prompt_logprobs = request.prompt_logprobs
            if self._watch is not None:
                self._watch(request, next(slots))


def make_asks(running: Running, *, num_tokens: int = NEW_TOKENS, seed: int = 0) -> list[Ask]:
    """Greedy requests whose prompts, or inputs of an encoder, lie around the border of a block, as far as they fit."""
    pick, budget = random.Random(seed), running.budget
    longest = budget.max_encoder_tokens or budget.max_total_tokens - num_tokens
    border = budget.block_size
    asks = []
    for length in (3, 2 * border + 13, border - 1, border, border + 1, 1):
        tokens = [pick.randrange(VOCAB_SIZE) for _ in range(max(1, min(length, longest)))]
        if budget.max_encoder_tokens:
            asks.append(Ask([_DECODER_START], num_tokens, encoder_ids=tuple(tokens)))
        else:
            asks.append(Ask(tokens, num_tokens))
    return asks


def check_result(plan: StepPlan, result: StepResult) -> None:
    """Refuse a result that does not fit its plan.

    Raises:
        ConformanceError: it is of another step, or of rows that the plan does not sample.
    """
    if result.step != plan.step:
        raise ConformanceError(f"collect returned step {result.step} where step {plan.step} was launched before.")
    pairs = {
        (slot, epoch) for slot, epoch, samples in zip(plan.slots, plan.epochs, plan.samples, strict=True) if samples
    }
    got = list(zip(result.slots, result.epochs, strict=True))
    if not plan.late and sorted(got) != sorted(pairs):
        raise ConformanceError(f"Step {plan.step} samples slots {sorted(pairs)}, its result has {sorted(got)}.")
    if any(not 0 <= token_id < VOCAB_SIZE for token_id in result.token_ids):
        raise ConformanceError(f"Step {plan.step} has tokens outside the vocabulary: {result.token_ids}.")


def check_late_compiles(running: Running) -> None:
    """Refuse a shard that has compiled anything since warm-up, except in idle time.

    Raises:
        ConformanceError: steps have waited for a compiler.
    """
    late = running.shard.late_compiles
    if late:
        raise ConformanceError(
            f"{late} programs were compiled for steps, while requests waited. What a shape needs must be compiled when "
            "it is prepared: by Device.compile, or by the first call of what it returns."
        )


@contextmanager
def start(
    backend: Backend,
    folder: Path,
    dtype: str,
    *,
    block_size: int | None = None,
    max_slots: int = MAX_SLOTS,
    kv_cache_tokens: int | None = None,
    attention: str = AUTO,
    eos_token_ids: tuple[int, ...] = (),
) -> Iterator[Running]:
    """A shard of the model in ``folder``, closed at the end.

    Raises:
        StartupError: the backend refuses the model or the limits.
    """
    capabilities = backend.capabilities()
    block_size = block_size or capabilities.block_sizes[0]
    total_tokens = min(MAX_POSITIONS, max(_TOTAL_TOKENS, 2 * block_size + STEP_TOKENS))
    shard = backend.create_shard(
        ShardSpec(
            model_dir=folder,
            dtype=dtype,
            cpu_threads=1,
            eos_token_ids=eos_token_ids,
            attention=choose_attention(backend, attention, folder, dtype, block_size),
        )
    )
    try:
        shard.load(_ignore_progress)
        limits = ShardLimits(
            max_slots=max_slots,
            # A step must hold the longest sequence where prompts are not cut.
            max_step_tokens=STEP_TOKENS if may_chunk(capabilities, shard) else total_tokens,
            block_size=block_size,
            max_total_tokens=total_tokens,
            kv_cache_bytes=_CACHE_BYTES,
            kv_cache_tokens=kv_cache_tokens,
        )
        yield Running(shard, shard.warm_up(limits), capabilities, limits)
    finally:
        shard.close()


def may_chunk(capabilities: Capabilities, shard: ModelShard) -> bool:
    """Whether a prompt may be computed over several steps; asked of a loaded shard."""
    return capabilities.chunked_prefill and not shard.whole_prompts


def _ignore_progress(done_bytes: int, total_bytes: int) -> None:
    """Tiny models are there at once."""


def _mask(allowed: tuple[int, ...] | None) -> bytes:
    assert allowed is not None, "only constrained rows have a mask"
    return sum(1 << token for token in allowed).to_bytes(4 * -(-VOCAB_SIZE // 32), "little")


class _AnyMatcher(Matcher):
    """Marks a request as constrained; the masks are made here."""

    error = ""
    is_complete = False

    def accept(self, token_id: int) -> bool:  # noqa: ARG002 - anything
        return True

    def copy(self) -> Matcher:
        return self
