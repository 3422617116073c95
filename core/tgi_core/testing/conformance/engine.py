"""An engine in the test's own process: the shard under test, the core's loop, and a channel that keeps account."""

from __future__ import annotations

import gc
import random
from collections import defaultdict

from tgi_core.contract import Device
from tgi_core.engine.frames import (
    Cancel,
    Command,
    EngineMessage,
    Finish,
    FinishRequest,
    RequestFailed,
    StepFrame,
    Submit,
    pack_ids,
    unpack_floats,
    unpack_ids,
    unpack_request_ids,
)
from tgi_core.engine.loop import EngineLoop
from tgi_core.sampling.params import SamplingParams
from tgi_core.testing.conformance.comparison import ConformanceError
from tgi_core.testing.conformance.models.sizes import VOCAB_SIZE
from tgi_core.testing.conformance.running import Ask, Reply, Running

WORKER = b"kit"
EOS = frozenset({5})
_MOST_ITERATIONS = 100_000


class Account:
    """A channel of one worker: requests go in, and what comes out is checked and counted.

    Attributes:
        inbox: commands for the loop.
        token_ids, logprobs: what each request has got so far.
        ended: requests that have ended, or were given up.
    """

    def __init__(self) -> None:
        self.inbox: list[Command] = []
        self.token_ids: dict[int, list[int]] = defaultdict(list)
        self.logprobs: dict[int, list[float]] = defaultdict(list)
        self.ended: set[int] = set()
        self._given_up: set[int] = set()

    def receive(self, timeout_ms: int) -> list[tuple[bytes, Command]]:  # noqa: ARG002 - nothing is waited for
        """Everything that waits in the inbox."""
        commands, self.inbox = self.inbox, []
        return [(WORKER, command) for command in commands]

    def send(self, worker: bytes, message: EngineMessage) -> bool:  # noqa: ARG002 - there is one
        """Take a message in.

        Raises:
            ConformanceError: a request fails, or gets something after its end.
        """
        if isinstance(message, RequestFailed):
            raise ConformanceError(f"Request {message.request_id} fails: {message.message}.")
        assert isinstance(message, StepFrame)
        columns = zip(
            unpack_request_ids(message.request_ids),
            unpack_ids(message.token_ids),
            unpack_floats(message.logprobs),
            message.finishes,
            strict=True,
        )
        for request_id, token_id, logprob, finish in columns:
            if request_id in self.ended and request_id not in self._given_up:
                raise ConformanceError(f"Request {request_id} gets a token after its end.")
            self.token_ids[request_id].append(token_id)
            self.logprobs[request_id].append(logprob)
            if finish != Finish.NOT:
                self.ended.add(request_id)
        return True

    def give_up(self, request_id: int) -> None:
        """Count a request as ended, though tokens on their way may still arrive."""
        if request_id not in self.ended:
            self._given_up.add(request_id)
            self.ended.add(request_id)


class Fuzz:
    """Waves of random requests, of which some are cancelled and some end at a stop string.

    Args:
        running: the shard.
        seed: of everything.

    Attributes:
        scheduler: the core's, with a prefix cache where that is declared.
    """

    def __init__(self, running: Running, *, seed: int = 0) -> None:
        self.scheduler = running.scheduler(prefix_cache=True, eos=EOS)
        self._account = Account()
        self._random = random.Random(seed)
        self._asks: dict[int, Ask] = {}
        self._next_id = 0
        self._longest = running.budget.max_total_tokens
        self._loop = EngineLoop(
            running.shard,
            self.scheduler,
            self._account,
            run_ahead=running.capabilities.run_ahead,
            max_total_tokens=self._longest,
        )

    def wave(self, count: int) -> list[Reply]:
        """Run ``count`` requests to their ends; returns the greedy replies that were not interrupted.

        Raises:
            ConformanceError: a request comes to no end, or blocks or slots are not given back.
        """
        first = self._next_id
        for _ in range(count):
            self._submit()
        iterations = 0
        while self._account.inbox or self.scheduler.has_requests or self._loop.has_work:
            if iterations % 4 == 0:
                self._interrupt(self._random.randrange(first, first + count), stop=iterations % 8 == 0)
            self._loop.iterate()
            iterations += 1
            if iterations > _MOST_ITERATIONS:
                raise ConformanceError("Requests come to no end.")
        self._check_rest(range(first, first + count))
        replies = [self._reply(number) for number in range(first, first + count) if number in self._asks]
        self._account.token_ids.clear()
        self._account.logprobs.clear()
        self._asks.clear()
        return replies

    def _submit(self) -> None:
        pick, number = self._random, self._next_id
        self._next_id += 1
        length = min(pick.choice((1, 3, 17, 90)) + pick.randrange(8), self._longest - 1)
        prompt = [pick.randrange(VOCAB_SIZE) for _ in range(length)]
        greedy = pick.random() < 0.5
        sampling = SamplingParams()
        if not greedy:
            penalty = pick.choice((0.0, 0.0, 0.5))
            sampling = SamplingParams(do_sample=True, seed=number, top_k=pick.choice((0, 5)), presence_penalty=penalty)
        most = min(1 + pick.randrange(30), self._longest - length)
        if greedy:
            self._asks[number] = Ask(prompt, most)
        self._account.inbox.append(Submit(number, pack_ids(prompt), most, sampling))

    def _interrupt(self, number: int, *, stop: bool) -> None:
        if number in self._account.ended:
            return
        self._asks.pop(number, None)
        known = len(self._account.token_ids[number])
        stops = stop and known > 0
        self._account.inbox.append(FinishRequest(number, known) if stops else Cancel(number))
        self._account.give_up(number)

    def _check_rest(self, numbers: range) -> None:
        lost = [number for number in numbers if number not in self._account.ended]
        if lost:
            raise ConformanceError(f"{len(lost)} requests are lost, such as {lost[0]}: they neither end nor fail.")
        used = [pool.num_used for pool in self.scheduler.kv.pools]
        if any(used) or self.scheduler.batch_size or self.scheduler.queue_size:
            raise ConformanceError(
                f"Nothing runs any more, and {used} blocks, {self.scheduler.batch_size} slots are not given back."
            )

    def _reply(self, number: int) -> Reply:
        reply = Reply(self._asks[number])
        reply.token_ids, reply.logprobs = self._account.token_ids[number], self._account.logprobs[number]
        return reply


def held_bytes(device: Device) -> int:
    """Memory of the device that this process holds now; 0 where the device does not say."""
    gc.collect()
    device.synchronize()
    device.reset_peak()
    memory = device.memory()
    return memory.peak_bytes or memory.total_bytes - memory.free_bytes
