"""An engine in the test's own process: null shard, scheduler, loop and a channel that keeps what it is given."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tgi_core.contract import ModelShard, ShardLimits, ShardSpec
from tgi_core.engine.frames import (
    Command,
    EngineMessage,
    Finish,
    RequestFailed,
    StepFrame,
    Submit,
    pack_ids,
    unpack_ids,
    unpack_request_ids,
)
from tgi_core.engine.loop import EngineLoop
from tgi_core.sampling import SamplingParams
from tgi_core.scheduler import Scheduler, SchedulerConfig
from tgi_core.testing.null_backend import NULL_BLOCK_BYTES, NullBackend, NullCosts

VOCAB_SIZE = 1000
WORKER = b"worker"


def write_null_model(folder: Path) -> Path:
    """A model folder with all that the null shard reads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": VOCAB_SIZE}))
    return folder


class MemoryChannel:
    """Commands to be read, and everything that was sent."""

    def __init__(self) -> None:
        self.inbox: list[tuple[bytes, Command]] = []
        self.sent: list[tuple[bytes, EngineMessage]] = []
        self.stuck: set[bytes] = set()

    def receive(self, timeout_ms: int) -> list[tuple[bytes, Command]]:
        commands, self.inbox = self.inbox, []
        return commands

    def send(self, worker: bytes, message: EngineMessage) -> bool:
        if worker in self.stuck:
            return False
        self.sent.append((worker, message))
        return True


class TestEngine:
    """A loop on the null backend, driven by hand."""

    __test__ = False

    def __init__(
        self,
        model_dir: Path,
        *,
        costs: NullCosts | None = None,
        shard: ModelShard | None = None,
        run_ahead: int = 1,
        max_slots: int = 8,
        max_total_tokens: int = 512,
        kv_blocks: int | None = None,
        constraints: Any = None,
    ) -> None:
        self.channel = MemoryChannel()
        spec = ShardSpec(model_dir=model_dir, dtype="float32")
        self.shard = shard if shard is not None else NullBackend(costs).create_shard(spec)
        self.shard.load(lambda done, total: None)
        limits = ShardLimits(
            max_slots=max_slots,
            max_step_tokens=256,
            block_size=16,
            max_total_tokens=max_total_tokens,
            kv_cache_bytes=None if kv_blocks is None else kv_blocks * NULL_BLOCK_BYTES,
        )
        config = SchedulerConfig(max_slots=max_slots, max_step_tokens=256, eos_token_ids=frozenset({2}))
        self.scheduler = Scheduler(config, self.shard.warm_up(limits))
        self.loop = EngineLoop(
            self.shard,
            self.scheduler,
            self.channel,
            run_ahead=run_ahead,
            max_total_tokens=max_total_tokens,
            constraints=constraints,
        )

    def submit(self, request_id: int, prompt: Sequence[int], max_new_tokens: int, worker: bytes = WORKER) -> None:
        command = Submit(request_id, pack_ids(prompt), max_new_tokens, SamplingParams())
        self.channel.inbox.append((worker, command))

    def run_until_idle(self, max_iterations: int = 10_000) -> None:
        for _ in range(max_iterations):
            self.loop.iterate()
            if not self.scheduler.has_requests and not self.channel.inbox and not self.loop.has_work:
                return
        raise AssertionError("the engine did not come to rest")

    def tokens(self, worker: bytes = WORKER) -> dict[int, list[int]]:
        """What was sent to a worker, by request."""
        tokens: dict[int, list[int]] = defaultdict(list)
        for frame in self.frames(worker):
            for request_id, token_id in zip(
                unpack_request_ids(frame.request_ids), unpack_ids(frame.token_ids), strict=True
            ):
                tokens[request_id].append(token_id)
        return dict(tokens)

    def finishes(self, worker: bytes = WORKER) -> dict[int, Finish]:
        """How requests ended."""
        return {
            request_id: Finish(finish)
            for frame in self.frames(worker)
            for request_id, finish in zip(unpack_request_ids(frame.request_ids), frame.finishes, strict=True)
            if finish
        }

    def frames(self, worker: bytes = WORKER) -> list[StepFrame]:
        return [message for to, message in self.channel.sent if to == worker and isinstance(message, StepFrame)]

    def failures(self, worker: bytes = WORKER) -> list[RequestFailed]:
        return [message for to, message in self.channel.sent if to == worker and isinstance(message, RequestFailed)]
