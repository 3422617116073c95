"""A model that attends to nothing and keeps a state of each slot, through the eager shard and the scheduler."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tgi_core.contract import (
    AttentionSpec,
    Capabilities,
    DeviceGraph,
    DeviceMemory,
    GraphMode,
    Kernels,
    KVBudget,
    ShardLimits,
    ShardSpec,
)
from tgi_core.errors import ExitCode, StartupError
from tgi_core.models.model import Loaded, LoadOptions, SlotState
from tgi_core.models.ropes import RopeSpec
from tgi_core.models.step import Step
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling.params import SamplingParams
from tgi_core.scheduler import Scheduler, SchedulerConfig
from tgi_core.scheduler.request import Request
from tgi_core.shards import EagerShard
from tgi_core.shards.cpu_device import CpuDevice

VOCAB = 50
PROMPTS = [[5, 9, 2], [7], list(range(40)), [1, 2, 3, 4, 5, 6], [0], [49, 48, 47]]


class Summing:
    """Says the sum of all tokens so far, which is all that it keeps of them."""

    hidden_E = torch.zeros(VOCAB)

    def hidden(self, step: Step) -> Tensor:
        assert list(step.views) == list(step.caches) == []
        rows, (sums_S,) = step.rows, step.states
        before_B = torch.where(rows.first_positions_B == 0, 0, sums_S[rows.slots_B])
        counts_B = rows.q_starts_B.diff()
        ids_T = step.ids_T.long()
        until_T = ids_T.cumsum(0)
        starts_B = rows.q_starts_B[:-1]
        shifts_B = before_B - (until_T - ids_T)[starts_B]
        sums_T = until_T + shifts_B.repeat_interleave(counts_B, output_size=len(ids_T))
        sums_S[rows.slots_B] = sums_T[rows.q_starts_B[1:] - 1]
        return torch.nn.functional.one_hot(sums_T % VOCAB, VOCAB).float()

    def logits(self, hidden_BE: Tensor) -> Tensor:
        return hidden_BE


class SummingModel:
    """See ``Model``."""

    path, reason = "a test's", ""
    vocab_size, max_positions = VOCAB, 1000
    attention: tuple[AttentionSpec, ...] = ()
    group_of_layer: tuple[int, ...] = ()
    ropes: tuple[RopeSpec, ...] = ()

    def __init__(self, states: tuple[SlotState, ...] = (SlotState((), torch.int64),)) -> None:
        self.states = states

    def records(self, kernels: Kernels) -> bool:
        return kernels.captures_states

    def load(self, options: LoadOptions) -> Loaded:
        return Loaded(Summing(), 0)


class Recorded:
    """Does the work again."""

    def __init__(self, work: Callable[[], None], counts: list[int]) -> None:
        self._work = work
        self._counts = counts

    def replay(self) -> None:
        self._counts.append(1)
        self._work()


class SmallDevice(CpuDevice):
    """A CPU of little memory, whose graphs are the work itself."""

    def __init__(self, free_bytes: int = 1 << 30) -> None:
        self.replays: list[int] = []
        self._free_bytes = free_bytes

    def memory(self) -> DeviceMemory:
        return DeviceMemory(self._free_bytes, self._free_bytes, 0)

    def capture(self, work: Callable[[], None]) -> DeviceGraph:
        work()
        return Recorded(work, self.replays)


Start = Callable[..., tuple[EagerShard, KVBudget]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a shard of a summing model."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "summing"}))

    def start(
        device: SmallDevice, graph: GraphMode, states: tuple[SlotState, ...] | None = None, max_slots: int = 3
    ) -> tuple[EagerShard, KVBudget]:
        model = SummingModel() if states is None else SummingModel(states)
        monkeypatch.setattr("tgi_core.shards.device_model.choose_model", lambda *_, **__: model)
        capabilities = Capabilities(graph=graph, asynchronous=True)
        shard = EagerShard(ShardSpec(model_dir=tmp_path, dtype="float32"), capabilities, device, ReferenceKernels())
        shard.load(lambda loaded_bytes, total_bytes: None)
        return shard, shard.warm_up(ShardLimits(max_slots=max_slots, max_step_tokens=16, block_size=16))

    return start


def expected(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(sum(tokens) % VOCAB)
    return tokens[len(prompt) :]


@pytest.mark.parametrize("graph", [GraphMode.NONE, GraphMode.DECODE])
@pytest.mark.parametrize("depth", [0, 1])
def test_every_token_is_counted_once_though_slots_are_used_again(start: Start, graph: GraphMode, depth: int) -> None:
    device = SmallDevice()
    shard, budget = start(device, graph)
    assert budget.groups == []
    assert budget.has_states
    assert budget.max_total_tokens == 1000
    config = SchedulerConfig(max_slots=3, max_step_tokens=16, eos_token_ids=frozenset())
    scheduler = Scheduler(config, budget)
    requests = [Request(b"", number, list(prompt), 9, SamplingParams()) for number, prompt in enumerate(PROMPTS)]
    for request in requests:
        scheduler.add(request)
    tickets = []
    while scheduler.has_requests:
        plan = scheduler.plan()
        if plan is not None:
            tickets.append(shard.launch(plan))
            shard.sample(tickets[-1], None)
        if len(tickets) > depth or plan is None:
            scheduler.apply(shard.collect(tickets.pop(0)))
    shard.close()
    assert [request.token_ids[len(prompt) :] for request, prompt in zip(requests, PROMPTS, strict=True)] == [
        expected(prompt, 9) for prompt in PROMPTS
    ]
    assert bool(device.replays) == (graph is GraphMode.DECODE)


def test_states_stand_in_the_memory_table(start: Start) -> None:
    shard, budget = start(SmallDevice(), GraphMode.NONE)
    shard.close()
    assert {line.name: line.size_bytes for line in budget.memory} == {
        "weights": 0,
        "activations": 0,
        "slot states": 4 * 8,
        "kv cache": 0,
    }


def test_states_that_do_not_fit_are_refused_before_they_are_made(start: Start) -> None:
    states = (SlotState((), torch.int64), SlotState((1 << 40,), torch.float32))
    with pytest.raises(StartupError) as caught:
        start(SmallDevice(), GraphMode.NONE, states)
    assert caught.value.exit_code is ExitCode.MEMORY
    # Of 1 GiB nine tenths may be used, of which 64 MiB are kept free: room for 8 slots of 96 MiB beside the one.
    states = (SlotState((), torch.int64), SlotState((24 << 20,), torch.float32))
    with pytest.raises(StartupError, match="--max-batch-size to 7 or less"):
        start(SmallDevice(), GraphMode.NONE, states, max_slots=20)
