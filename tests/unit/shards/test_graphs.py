"""Recorded decode steps: padding, tiers, and the same tokens as steps that are computed one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.driver import Driver, Generation
from tests.support.tiny_models import make_model
from tgi_core.contract import (
    AttentionBatch,
    AttentionSpec,
    Capabilities,
    DeviceGraph,
    GraphMode,
    KVBudget,
    ShardLimits,
    ShardSpec,
)
from tgi_core.contract.kernels import PreparedAttention
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling.params import SamplingParams, Tier
from tgi_core.shards import EagerShard
from tgi_core.shards.cpu_device import CpuDevice
from tgi_core.shards.graphs import graph_sizes

Outputs = list[tuple[list[int], list[float]]]
PROMPTS = [[5, 9, 2], [7], list(range(40)), [1, 2, 3, 4, 5, 6]]


class Recorded:
    """Does the work again."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        self.work()


class RecordingDevice(CpuDevice):
    """A CPU whose graphs are the work itself."""

    def __init__(self) -> None:
        self.graphs: list[Recorded] = []

    def capture(self, work: Callable[[], None]) -> DeviceGraph:
        work()
        self.graphs.append(Recorded(work))
        return self.graphs[-1]


class DeviceLengths(ReferenceKernels):
    """Takes lengths from the device, as kernels that can be recorded must."""

    def prepare_attention(self, batch: AttentionBatch, spec: AttentionSpec) -> PreparedAttention:
        return super().prepare_attention(batch._replace(kv_lens=batch.kv_lens_B.tolist()), spec)


class Running:
    """A warmed-up shard."""

    def __init__(
        self,
        folder: Path,
        graph: GraphMode,
        kernels: ReferenceKernels,
        max_slots: int = 6,
        device: RecordingDevice | None = None,
    ) -> None:
        self.device = device or RecordingDevice()
        capabilities = Capabilities(dtypes=("float32",), graph=graph, asynchronous=True)
        self.shard = EagerShard(ShardSpec(model_dir=folder, dtype="float32"), capabilities, self.device, kernels)
        self.shard.load(lambda loaded_bytes, total_bytes: None)
        self.budget: KVBudget = self.shard.warm_up(
            ShardLimits(
                max_slots=max_slots, max_step_tokens=64, block_size=16, max_total_tokens=128, kv_cache_bytes=1 << 22
            )
        )

    def generate(self, sampling: SamplingParams | None = None) -> Outputs:
        generations = [Generation(prompt, 6 + 5 * row, sampling) for row, prompt in enumerate(PROMPTS)]
        Driver(self.shard, self.budget, max_step_tokens=16, depth=1).run(generations)
        return [(generation.token_ids, generation.logprobs) for generation in generations]

    @property
    def replays(self) -> int:
        return sum(graph.replays for graph in self.device.graphs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_model("mistral-window", path)
    return path


@pytest.fixture
def recorded(folder: Path) -> Iterator[Running]:
    running = Running(folder, GraphMode.DECODE, DeviceLengths())
    yield running
    running.shard.close()


def test_replayed_steps_give_the_same_tokens(folder: Path, recorded: Running) -> None:
    plain = Running(folder, GraphMode.NONE, DeviceLengths())
    assert_same(recorded.generate(), plain.generate())
    assert recorded.replays > 10
    assert plain.replays == 0


@pytest.mark.parametrize("sampling", [SamplingParams(do_sample=True, seed=4), SamplingParams(presence_penalty=1.0)])
def test_a_tier_that_cannot_be_recorded_is_replayed_up_to_its_hidden_states(
    folder: Path, recorded: Running, sampling: SamplingParams
) -> None:
    plain = Running(folder, GraphMode.NONE, DeviceLengths())
    assert_same(recorded.generate(sampling), plain.generate(sampling))
    assert recorded.replays > 10


def test_the_other_sizes_are_recorded_in_idle_time(folder: Path) -> None:
    running = Running(folder, GraphMode.DECODE, DeviceLengths(), max_slots=48)
    at_start = len(running.device.graphs)
    expected = running.generate()
    # Of 1, 2, 4, 8, 16, 24, 32, 40, 48 rows those of 24 and 40 wait; each is recorded whole and up to hidden states.
    assert running.shard.use_idle_time()
    assert not running.shard.use_idle_time()
    assert not running.shard.use_idle_time()
    assert len(running.device.graphs) == at_start + 4
    assert running.generate() == expected


def test_idle_time_without_memory_is_given_up(folder: Path) -> None:
    class Full(RecordingDevice):
        is_full = False

        def capture(self, work: Callable[[], None]) -> DeviceGraph:
            if self.is_full:
                raise torch.OutOfMemoryError("none left")
            return super().capture(work)

    device = Full()
    running = Running(folder, GraphMode.DECODE, DeviceLengths(), max_slots=48, device=device)
    device.is_full = True
    assert not running.shard.use_idle_time()
    assert [len(token_ids) for token_ids, _ in running.generate()] == [6, 11, 16, 21]


def test_a_sampled_tier_is_replayed_where_the_kernels_say_so(folder: Path) -> None:
    class Captures(DeviceLengths):
        def captures(self, tier: Tier) -> bool:
            return tier is not Tier.FULL

    plain, running = Running(folder, GraphMode.NONE, DeviceLengths()), Running(folder, GraphMode.DECODE, Captures())
    sampling = SamplingParams(do_sample=True, top_p=0.9, seed=4)
    assert_same(running.generate(sampling), plain.generate(sampling))
    assert running.replays > 10


def test_padding_leaves_the_scratch_row_as_it_was(recorded: Running) -> None:
    recorded.generate()
    assert recorded.shard._runner is not None
    state = recorded.shard._runner.state
    assert state is not None
    assert state.lengths_S[-1] == 1
    for table_SM, group in zip(state.block_tables, recorded.budget.groups, strict=True):
        assert table_SM[-1].unique().tolist() == [group.blocks]


def test_attention_bound_to_the_reference_records_nothing(folder: Path) -> None:
    class NoAttention(DeviceLengths):
        def supports(self, operation: str, spec: AttentionSpec) -> bool:
            return operation != "attention"

    running = Running(folder, GraphMode.DECODE, NoAttention())
    assert running.device.graphs == []
    assert [len(token_ids) for token_ids, _ in running.generate()] == [6, 11, 16, 21]


def test_graph_memory_is_in_the_table(recorded: Running) -> None:
    assert "graphs" in [line.name for line in recorded.budget.memory]


@pytest.mark.parametrize(("most", "sizes"), [(1, [1]), (6, [1, 2, 4, 6]), (20, [1, 2, 4, 8, 16, 20])])
def test_sizes(most: int, sizes: list[int]) -> None:
    assert graph_sizes(most) == sizes


def test_sizes_are_dense() -> None:
    sizes = graph_sizes(512)
    assert sizes[-1] == 512
    assert all(small < large for small, large in pairwise(sizes))
    assert all(large - small <= max(8, large // 16) for small, large in pairwise(sizes))


def test_outputs_keep_their_bits() -> None:
    """Ids and log-probabilities travel as words of one tensor."""
    ids_B, logprobs_B = torch.tensor([-1, 2**40, 7]), torch.tensor([-0.5, float("-inf"), -1e-30])
    packed: Tensor = torch.cat((ids_B.view(torch.int32), logprobs_B.view(torch.int32)))
    assert torch.equal(packed[:6].view(torch.int64), ids_B)
    assert torch.equal(packed[6:].view(torch.float32), logprobs_B)


def assert_same(actual: Outputs, expected: Outputs) -> None:
    """The same tokens; sums of padded steps may differ in their last bits."""
    assert [token_ids for token_ids, _ in actual] == [token_ids for token_ids, _ in expected]
    for (_, logprobs), (_, expected_logprobs) in zip(actual, expected, strict=True):
        assert logprobs == pytest.approx(expected_logprobs, abs=1e-4)
