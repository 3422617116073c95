"""The eager shard as the engine drives it: shared blocks, masks, failures, refusals at start."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.driver import Driver, Generation
from tests.support.shards import WatchedReference, start_shard
from tgi_core.contract import (
    AppendedBlocks,
    Capabilities,
    CopiedBlock,
    Device,
    DeviceEvent,
    DeviceMemory,
    KVBudget,
    LateInputs,
    NewSlot,
    ShardLimits,
    ShardSpec,
    StepPlan,
    StepResult,
)
from tgi_core.errors import ExitCode, StartupError
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling.params import SamplingParams, Tier
from tgi_core.shards import EagerShard
from tgi_core.shards.cpu_device import CpuDevice

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 70,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
}
PROMPT = [5, 60, 3, 44, 12, 7, 7, 31, 2, 19, 23, 50, 64, 1, 8, 33, 28, 11, 45, 6]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.fixture
def running(folder: Path) -> Iterator[tuple[EagerShard, KVBudget, WatchedReference]]:
    kernels = WatchedReference()
    shard, budget = start_shard(folder, kernels, load_format="dummy", max_total_tokens=64)
    kernels.logits.clear()
    yield shard, budget, kernels
    shard.close()


def plan(
    step: int,
    slot: int,
    q_len: int,
    kv_len: int,
    *,
    samples: bool = True,
    new: list[NewSlot] | None = None,
    appended: list[AppendedBlocks] | None = None,
    copied: list[CopiedBlock] | None = None,
    late: bool = False,
    tier: Tier = Tier.GREEDY,
    epoch: int = 0,
) -> StepPlan:
    return StepPlan(
        step=step,
        slots=[slot],
        epochs=[epoch],
        q_lens=[q_len],
        kv_lens=[kv_len],
        samples=[samples],
        num_decodes=0,
        tier=tier,
        new_slots=new or [],
        appended_blocks=appended or [],
        copied_blocks=copied or [],
        late=late,
    )


def run(shard: EagerShard, step: StepPlan, late: LateInputs | None = None) -> StepResult:
    ticket = shard.launch(step)
    assert ticket.step == step.step
    shard.sample(ticket, late)
    return shard.collect(ticket)


def enter(slot: int, sampling: SamplingParams | None = None, prompt_len: int = len(PROMPT)) -> list[NewSlot]:
    return [NewSlot(slot, PROMPT, prompt_len, sampling or SamplingParams())]


def test_results_carry_slot_and_epoch(running: tuple[EagerShard, KVBudget, WatchedReference]) -> None:
    shard, _, _ = running
    result = run(shard, plan(9, 4, 20, 20, new=enter(4), appended=[AppendedBlocks(0, 4, 0, [3, 8])], epoch=7))
    assert (result.step, result.slots, result.epochs) == (9, [4], [7])
    assert isinstance(result.token_ids[0], int)
    assert isinstance(result.logprobs[0], float)


def test_a_chunk_without_a_sample(running: tuple[EagerShard, KVBudget, WatchedReference]) -> None:
    shard, _, kernels = running
    whole = run(shard, plan(1, 0, 20, 20, new=enter(0), appended=[AppendedBlocks(0, 0, 0, [0, 1])]))
    first = run(shard, plan(2, 1, 9, 9, samples=False, new=enter(1), appended=[AppendedBlocks(0, 1, 0, [5, 2])]))
    assert (first.slots, first.token_ids, first.logprobs) == ([], [], [])
    second = run(shard, plan(3, 1, 11, 20))
    assert second.token_ids == whole.token_ids
    torch.testing.assert_close(kernels.logits[1][0], kernels.logits[0][0])


def test_shared_and_copied_blocks(running: tuple[EagerShard, KVBudget, WatchedReference]) -> None:
    """A prefix hit computes only the rest of the prompt over another slot's blocks, or over a copy of them."""
    shard, _, kernels = running
    run(shard, plan(1, 0, 20, 20, new=enter(0), appended=[AppendedBlocks(0, 0, 0, [4, 5])]))
    run(shard, plan(2, 1, 4, 20, new=enter(1), appended=[AppendedBlocks(0, 1, 0, [4, 6])]))
    copy = [CopiedBlock(0, 4, 9)]
    run(shard, plan(3, 2, 4, 20, new=enter(2), appended=[AppendedBlocks(0, 2, 0, [9, 7])], copied=copy))
    torch.testing.assert_close(kernels.logits[1][0], kernels.logits[0][0])
    torch.testing.assert_close(kernels.logits[2][0], kernels.logits[0][0])


def test_late_masks(running: tuple[EagerShard, KVBudget, WatchedReference]) -> None:
    shard, _, _ = running
    step = plan(1, 0, 20, 20, new=enter(0), appended=[AppendedBlocks(0, 0, 0, [0, 1])], late=True)
    words = [0, 1 << 31, 1 << 3]
    late = LateInputs([0], b"".join(word.to_bytes(4, "little") for word in words))
    result = run(shard, step, late)
    assert result.token_ids[0] in (63, 67)
    assert result.logprobs[0] > -20


def test_output_position_after_a_preemption(running: tuple[EagerShard, KVBudget, WatchedReference]) -> None:
    """A preempted request comes back with its output as part of the tokens; its noise goes on where it stopped."""
    shard, budget, _ = running
    sampling = SamplingParams(do_sample=True, temperature=1.5, seed=11)
    generation = Generation(PROMPT, 4, sampling)
    Driver(shard, budget).run([generation])
    known = NewSlot(0, PROMPT + generation.token_ids[:2], len(PROMPT), sampling)
    step = plan(50, 0, 22, 22, new=[known], appended=[AppendedBlocks(0, 0, 0, [0, 1])], tier=Tier.SAMPLED)
    assert run(shard, step).token_ids == generation.token_ids[2:3]


def test_steps_run_on_one_thread_of_their_own(folder: Path) -> None:
    threads = set()

    class Notices(ReferenceKernels):
        def embedding(self, ids_T: Tensor, weight_VE: Tensor) -> Tensor:
            threads.add((threading.current_thread().name, torch.get_num_threads()))
            return super().embedding(ids_T, weight_VE)

    shard, budget = start_shard(folder, Notices(), load_format="dummy", threads=1)
    Driver(shard, budget, depth=1).run([Generation(PROMPT, 3)])
    shard.close()
    assert len(threads) == 1
    name, num_threads = threads.pop()
    assert name != threading.current_thread().name
    assert num_threads == 1


def test_launch_does_not_wait(folder: Path) -> None:
    gate = threading.Event()

    class Waits(ReferenceKernels):
        closed = False

        def embedding(self, ids_T: Tensor, weight_VE: Tensor) -> Tensor:
            assert not self.closed or gate.wait(10)
            return super().embedding(ids_T, weight_VE)

    kernels = Waits()
    shard, _ = start_shard(folder, kernels, load_format="dummy")
    kernels.closed = True
    first = shard.launch(plan(1, 0, 20, 20, new=enter(0), appended=[AppendedBlocks(0, 0, 0, [0, 1])]))
    shard.sample(first, None)
    second = shard.launch(plan(2, 0, 1, 21))
    shard.sample(second, None)
    gate.set()
    tokens = [shard.collect(ticket).token_ids for ticket in (first, second)]
    assert all(len(step) == 1 for step in tokens)
    shard.close()


def test_a_failure_reaches_collect(folder: Path) -> None:
    class Breaks(ReferenceKernels):
        broken = False

        def embedding(self, ids_T: Tensor, weight_VE: Tensor) -> Tensor:
            if self.broken:
                raise RuntimeError("the device is gone")
            return super().embedding(ids_T, weight_VE)

    kernels = Breaks()
    shard, _ = start_shard(folder, kernels, load_format="dummy")
    kernels.broken = True
    ticket = shard.launch(plan(1, 0, 20, 20, new=enter(0), appended=[AppendedBlocks(0, 0, 0, [0, 1])]))
    shard.sample(ticket, None)
    with pytest.raises(RuntimeError, match="the device is gone"):
        shard.collect(ticket)
    shard.close()


def test_budget_and_memory_table(running: tuple[EagerShard, KVBudget, WatchedReference]) -> None:
    _, budget, _ = running
    assert budget.max_total_tokens == 64
    (group,) = budget.groups
    assert group.group.window is None
    assert group.group.bytes_per_block == 2 * 16 * 2 * 2 * 8 * 4
    assert group.blocks == 6 * 4
    table = {line.name: line.size_bytes for line in budget.memory}
    assert list(table) == ["weights", "activations", "kv cache"]
    assert table["kv cache"] == group.blocks * group.group.bytes_per_block
    assert table["weights"] == 4 * (2 * 70 * 32 + 32 + 2 * (2 * 32 + 64 * 32 + 32 * 32 + 3 * 48 * 32))


def test_every_token_of_the_longest_sequence_fits(
    running: tuple[EagerShard, KVBudget, WatchedReference],
) -> None:
    shard, budget, _ = running
    generation = Generation(PROMPT, budget.max_total_tokens - len(PROMPT))
    Driver(shard, budget, depth=1).run([generation])
    assert len(generation.token_ids) == 44


def test_memory_refusal(folder: Path) -> None:
    spec = ShardSpec(model_dir=folder, dtype="float32", load_format="dummy", cpu_threads=1)
    shard = EagerShard(spec, Capabilities(), CpuDevice(), ReferenceKernels())
    shard.load(lambda loaded_bytes, total_bytes: None)
    limits = ShardLimits(max_slots=2, max_step_tokens=32, block_size=16, max_total_tokens=90, kv_cache_bytes=8192)
    with pytest.raises(StartupError) as caught:
        shard.warm_up(limits)
    assert caught.value.exit_code is ExitCode.MEMORY
    assert "activations" in str(caught.value)
    assert "--max-total-tokens to 32" in str(caught.value)
    shard.close()


@pytest.mark.parametrize(
    ("change", "capabilities", "dtype", "message"),
    [
        ({"model_type": "whale"}, Capabilities(), "float32", "`model_type` = 'whale'"),
        ({}, Capabilities(dtypes=("bfloat16",)), "float32", "does not compute in float32"),
        ({}, Capabilities(head_dims=(64, 128)), "float32", "heads of 8 features"),
    ],
)
def test_refusals_before_anything_is_loaded(
    folder: Path, change: dict[str, Any], capabilities: Capabilities, dtype: str, message: str
) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | change))
    spec = ShardSpec(model_dir=folder, dtype=dtype, load_format="dummy", cpu_threads=1)
    with pytest.raises(StartupError, match=message):
        EagerShard(spec, capabilities, CpuDevice(), ReferenceKernels())


def test_block_size_refusal(folder: Path) -> None:
    spec = ShardSpec(model_dir=folder, dtype="float32", load_format="dummy", cpu_threads=1)
    shard = EagerShard(spec, Capabilities(), CpuDevice(), ReferenceKernels())
    shard.load(lambda loaded_bytes, total_bytes: None)
    with pytest.raises(StartupError, match="blocks of 24 tokens"):
        shard.warm_up(ShardLimits(max_slots=2, max_step_tokens=32, block_size=24))
    shard.close()


def test_operations_bound_to_the_reference_are_told(folder: Path) -> None:
    class NoAttention(WatchedReference):
        notes = ("runs on clay tablets",)

        def supports(self, operation: str, spec: object) -> bool:
            return operation != "attention"

    shard, _ = start_shard(folder, NoAttention(), load_format="dummy")
    shard.close()
    assert shard.notes[0] == "runs on clay tablets"
    assert "attention" in shard.notes[1]


class StreamDevice(Device):
    """A device that says it works behind the caller's back."""

    def __init__(self) -> None:
        self.waits = 0

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> DeviceMemory:
        return DeviceMemory(1 << 30, 1 << 30, 0)

    def synchronize(self) -> None:
        return

    def record_event(self) -> DeviceEvent:
        device = self

        class Event:
            def synchronize(self) -> None:
                device.waits += 1

        return Event()


def test_an_asynchronous_device_is_driven_from_the_callers_thread(
    folder: Path, running: tuple[EagerShard, KVBudget, WatchedReference]
) -> None:
    expected = Generation(PROMPT, 5)
    Driver(*running[:2]).run([expected])
    threads = set()

    class Notices(ReferenceKernels):
        def embedding(self, ids_T: Tensor, weight_VE: Tensor) -> Tensor:
            threads.add(threading.current_thread())
            return super().embedding(ids_T, weight_VE)

    device = StreamDevice()
    spec = ShardSpec(model_dir=folder, dtype="float32", load_format="dummy")
    shard = EagerShard(spec, Capabilities(asynchronous=True), device, Notices())
    shard.load(lambda loaded_bytes, total_bytes: None)
    budget = shard.warm_up(ShardLimits(max_slots=2, max_step_tokens=32, block_size=16, kv_cache_bytes=1 << 20))
    generation = Generation(PROMPT, 5)
    Driver(shard, budget, depth=1).run([generation])
    assert generation.token_ids == expected.token_ids
    assert threads == {threading.current_thread()}
    assert device.waits == 5
    shard.close()


def test_windows_that_the_device_cannot_free(folder: Path) -> None:
    changed = CONFIG | {"model_type": "mistral", "sliding_window": 8}
    (folder / "config.json").write_text(json.dumps(changed))
    spec = ShardSpec(model_dir=folder, dtype="float32", load_format="dummy", cpu_threads=1)
    limits = ShardLimits(max_slots=2, max_step_tokens=32, block_size=16, kv_cache_bytes=1 << 20)
    outputs = []
    for sliding_window in (True, False):
        shard = EagerShard(spec, Capabilities(sliding_window=sliding_window), CpuDevice(), ReferenceKernels())
        shard.load(lambda loaded_bytes, total_bytes: None)
        budget = shard.warm_up(limits)
        assert [group.group.window for group in budget.groups] == [8 if sliding_window else None]
        generation = Generation(PROMPT, 20)
        Driver(shard, budget).run([generation])
        outputs.append(generation.token_ids)
        shard.close()
    assert outputs[0] == outputs[1]


def test_kv_cache_takes_its_share_of_free_memory(folder: Path) -> None:
    class Small(StreamDevice):
        kv_cache_share = 0.5

        def memory(self) -> DeviceMemory:
            return DeviceMemory((64 << 20) + 100_000, 1 << 30, 0)

    spec = ShardSpec(model_dir=folder, dtype="float32", load_format="dummy", cpu_threads=1)
    shard = EagerShard(spec, Capabilities(), Small(), ReferenceKernels())
    shard.load(lambda loaded_bytes, total_bytes: None)
    limits = ShardLimits(max_slots=8, max_step_tokens=32, block_size=16, memory_fraction=1.0)
    budget = shard.warm_up(limits)
    assert [group.blocks for group in budget.groups] == [50_000 // (2 * 16 * 2 * 2 * 8 * 4)]
    shard.close()


def test_a_step_that_finds_no_memory_when_it_is_measured_is_refused_with_what_to_lower(folder: Path) -> None:
    class Full(ReferenceKernels):
        def activation_mul(self, x_T2F: torch.Tensor, activation: str) -> torch.Tensor:
            raise torch.OutOfMemoryError("no memory")

    with pytest.raises(StartupError, match="step of 64 tokens and 6 requests") as caught:
        start_shard(folder, Full(), load_format="dummy")
    assert caught.value.exit_code is ExitCode.MEMORY
    assert "--max-batch-prefill-tokens (64)" in caught.value.fix
    assert "--max-batch-size (6)" in caught.value.fix
