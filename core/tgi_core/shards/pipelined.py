"""How a shard's work gets from the engine's thread to where it runs, and its results back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch

from tgi_core.contract import (
    DeviceEvent,
    KVBudget,
    LateInputs,
    LoadProgress,
    ModelShard,
    ShardLimits,
    StepPlan,
    StepResult,
    Ticket,
)
from tgi_core.shards.faults import typed_faults
from tgi_core.shards.worker import Worker


class OnItsWay(Protocol):
    """A sampled step that the host may read once the event has been waited for."""

    @property
    def event(self) -> DeviceEvent:
        """After the last copy."""


ForwardT = TypeVar("ForwardT")
"""What is kept of a launched forward."""

SampledT = TypeVar("SampledT", bound=OnItsWay)
"""What is kept of a launched sampling."""

T = TypeVar("T")


class _Ticket(Generic[ForwardT, SampledT]):
    """A launched step."""

    def __init__(self, plan: StepPlan, forward: Future[ForwardT]) -> None:
        self.plan = plan
        self.forward = forward
        self.sampled: Future[SampledT] | None = None

    @property
    def step(self) -> int:
        return self.plan.step


class PipelinedShard(ModelShard, Generic[ForwardT, SampledT]):
    """A shard whose work runs in order on a worker; of a step's calls only ``collect`` waits for it.

    Args:
        worker: where the work runs.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def load(self, progress: LoadProgress) -> None:
        self._submit(partial(self._load, progress)).result()

    def warm_up(self, limits: ShardLimits) -> KVBudget:
        return self._submit(partial(self._warm_up, limits)).result()

    def launch(self, plan: StepPlan) -> Ticket:
        return _Ticket[ForwardT, SampledT](plan, self._submit(partial(self._forward, plan)))

    def sample(self, ticket: Ticket, late: LateInputs | None) -> None:
        assert isinstance(ticket, _Ticket)
        # The forward has run when its sampling begins, or has failed, which then fails too.
        ticket.sampled = self._submit(lambda: self._sample(ticket.plan, ticket.forward.result(), late))

    def collect(self, ticket: Ticket) -> StepResult:
        assert isinstance(ticket, _Ticket)
        assert ticket.sampled is not None, "sample comes before collect"
        with typed_faults():
            sampled = ticket.sampled.result()
            sampled.event.synchronize()
        return self._result(ticket.plan, ticket.forward.result(), sampled)

    def close(self) -> None:
        self._worker.close()
        self._release()

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        return self._worker.submit(partial(_without_gradients, work))

    # -- what a kind of shard does, on the worker ---------------------------------------------------------------------

    @abstractmethod
    def _load(self, progress: LoadProgress) -> None:
        """See ``ModelShard.load``."""

    @abstractmethod
    def _warm_up(self, limits: ShardLimits) -> KVBudget:
        """See ``ModelShard.warm_up``."""

    @abstractmethod
    def _forward(self, plan: StepPlan) -> ForwardT:
        """Launch a step's forward."""

    @abstractmethod
    def _sample(self, plan: StepPlan, forward: ForwardT, late: LateInputs | None) -> SampledT:
        """Launch its sampling."""

    # -- and on the engine's thread -----------------------------------------------------------------------------------

    @abstractmethod
    def _result(self, plan: StepPlan, forward: ForwardT, sampled: SampledT) -> StepResult:
        """Read a step that has arrived."""

    @abstractmethod
    def _release(self) -> None:
        """Let go of weights, tables and caches; nothing runs any more."""


@torch.inference_mode()
def _without_gradients(work: Callable[[], T]) -> T:
    # The mode is a thread's, so it is entered where the work runs.
    return work()
