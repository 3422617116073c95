"""Shards around the core's own, with one fault each, for the backends in ``tests.testing.sabotage``."""

from __future__ import annotations

import torch
from msgspec.structs import replace
from torch import Tensor

from tgi_core.contract import (
    KVBudget,
    LateInputs,
    LoadProgress,
    ModelShard,
    ShardLimits,
    StepPlan,
    StepResult,
    Ticket,
)


class Wrapped(ModelShard):
    """Passes everything on."""

    def __init__(self, shard: ModelShard) -> None:
        self._shard = shard

    def load(self, progress: LoadProgress) -> None:
        self._shard.load(progress)

    def warm_up(self, limits: ShardLimits) -> KVBudget:
        return self._shard.warm_up(limits)

    def launch(self, plan: StepPlan) -> Ticket:
        return self._shard.launch(plan)

    def sample(self, ticket: Ticket, late: LateInputs | None) -> None:
        self._shard.sample(ticket, late)

    def collect(self, ticket: Ticket) -> StepResult:
        return self._shard.collect(ticket)

    def close(self) -> None:
        self._shard.close()


class SamplesLate(Wrapped):
    """Samples a step when it is collected, though the next one has been launched by then."""

    def __init__(self, shard: ModelShard) -> None:
        super().__init__(shard)
        self._late: dict[int, LateInputs | None] = {}

    def sample(self, ticket: Ticket, late: LateInputs | None) -> None:
        self._late[ticket.step] = late

    def collect(self, ticket: Ticket) -> StepResult:
        self._shard.sample(ticket, self._late.pop(ticket.step))
        return self._shard.collect(ticket)


class WrongAlternatives(Wrapped):
    """Reports the alternatives' tokens, but not their log-probabilities, in another order."""

    def collect(self, ticket: Ticket) -> StepResult:
        result = self._shard.collect(ticket)
        return replace(result, tops=[top and replace(top, token_ids=top.token_ids[::-1]) for top in result.tops])


class HarmfulIdleTime(Wrapped):
    """What it does in idle time writes over the caches of those that wait for their next step."""

    @torch.inference_mode()
    def use_idle_time(self) -> bool:
        caches: tuple[Tensor, ...] = self._shard._runner.state.kv  # type: ignore[attr-defined]
        for cache in caches:
            cache.neg_()
        return False
