"""A shard of static shapes gives what the one that takes any shape gives, and compiles nothing while it serves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from tests.support.architectures import VOCAB, make_model
from tests.support.greedy import make_prompts
from tgi_core.contract import (
    AppendedBlocks,
    BucketRules,
    CompiledStep,
    DeviceMemory,
    DeviceState,
    KVBudget,
    Ladder,
    ModelShard,
    NewSlot,
    ShardLimits,
    ShardSpec,
    StepPlan,
)
from tgi_core.errors import LateCompileError
from tgi_core.sampling.params import SamplingParams
from tgi_core.scheduler import Request, Scheduler, SchedulerConfig
from tgi_core.shards.bucketed import BucketedShard
from tgi_core.testing.reference_backend import ReferenceBackend
from tgi_core.testing.stand_ins.bucketed import BucketedCpuBackend, BucketedCpuDevice
from tgi_core.testing.stand_ins.static_shapes import StaticShapesOnly

LIMITS = ShardLimits(
    max_slots=6, max_step_tokens=24, block_size=16, max_total_tokens=96, kv_cache_bytes=64 << 20, kv_cache_tokens=128
)
BUCKETS = BucketRules(
    prefill_lengths=Ladder(smallest=8),
    prefill_columns=Ladder(smallest=2, growth=4),
    decode_blocks=Ladder(smallest=2, growth=4),
)
FLAT = replace(BUCKETS, flat_decode=True)
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(do_sample=True, temperature=0.8, top_k=20, top_p=0.9, seed=5),
    SamplingParams(do_sample=True, seed=2**63 + 1, repetition_penalty=1.3, frequency_penalty=0.2, top_n=3),
    SamplingParams(top_n=2, raw_logprobs=True, logit_bias={7: 4.0}, bad_words=((3, 4),), min_tokens=3),
    SamplingParams(do_sample=True, typical_p=0.7, min_p=0.02, seed=9),
    SamplingParams(do_sample=True, seed=11, allowed_token_ids=(1, 2, 3, 50), watermark_delta=2.0, watermark_gamma=0.5),
)

FIRST_STEP = StepPlan(
    step=1,
    slots=[0],
    epochs=[0],
    q_lens=[3],
    kv_lens=[3],
    samples=[True],
    num_decodes=0,
    new_slots=[NewSlot(0, [3, 4, 5], 3, SamplingParams())],
    appended_blocks=[AppendedBlocks(0, 0, 0, [0])],
)
"""Of one request that was not there before."""


class Reply:
    """What one request got."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.logprobs: list[float] = []
        self.tops: list[tuple[list[int], list[float]]] = []


def make_shard(spec: ShardSpec, rules: BucketRules, device: BucketedCpuDevice | None = None) -> BucketedShard:
    """A shard of the stand-in, with other rules."""
    backend = BucketedCpuBackend()
    device = device or backend.open_device(0)
    return BucketedShard(spec, replace(backend.capabilities(), buckets=rules), device, backend.kernels(device))


def serve(shard: ModelShard, samplings: Sequence[SamplingParams]) -> list[Reply]:
    """Serve prompts of all lengths together, one step ahead, with too few blocks for all."""
    shard.load(lambda loaded_bytes, total_bytes: None)
    budget = shard.warm_up(LIMITS)
    config = SchedulerConfig(max_slots=6, max_step_tokens=24, eos_token_ids=frozenset(), mixed_batches=False)
    scheduler = Scheduler(config, budget)
    prompts = make_prompts(VOCAB)
    prompts.append(prompts[0])
    replies = []
    for number, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
        request = Request(b"", number, list(prompt), 20, sampling, prompt_logprobs=number == 1)
        replies.append(Reply(request))
        scheduler.add(request)
    flights = []
    while scheduler.has_requests:
        plan = scheduler.plan()
        if plan is not None:
            ticket = shard.launch(plan)
            shard.sample(ticket, None)
            flights.append(ticket)
        if plan is None or len(flights) > 1:
            outputs = scheduler.apply(shard.collect(flights.pop(0)))
            tops = outputs.tops or [None] * len(outputs.requests)
            for request, logprob, top in zip(outputs.requests, outputs.logprobs, tops, strict=True):
                reply = replies[request.request_id]
                reply.logprobs.append(logprob)
                if top is not None:
                    reply.tops.append((top.token_ids, top.logprobs))
    assert scheduler.preemptions > 0
    shard.close()
    return replies


@pytest.mark.parametrize(
    ("name", "decodes"),
    [
        ("gpt_oss", (BUCKETS, FLAT)),
        ("bloom", (FLAT,)),
        ("qwen3_moe", (BUCKETS,)),
        ("deepseek_v3", (BUCKETS,)),
        ("llama4", (FLAT,)),
    ],
)
def test_equals_the_shard_of_any_shape(name: str, decodes: tuple[BucketRules, ...], tmp_path: Path) -> None:
    make_model(name, tmp_path)
    spec = ShardSpec(model_dir=tmp_path, dtype="float32", cpu_threads=1, eos_token_ids=(2,))
    expected = serve(ReferenceBackend().create_shard(spec), SAMPLINGS)
    for rules in decodes:
        found = serve(make_shard(spec, rules), SAMPLINGS)
        for theirs, ours in zip(expected, found, strict=True):
            assert ours.request.token_ids == theirs.request.token_ids
            torch.testing.assert_close(ours.logprobs, theirs.logprobs, rtol=1e-4, atol=1e-4)
            assert [ids for ids, _ in ours.tops] == [ids for ids, _ in theirs.tops]
        assert expected[1].request.prompt_logprobs is not None
        torch.testing.assert_close(
            found[1].request.prompt_logprobs, expected[1].request.prompt_logprobs, rtol=1e-4, atol=1e-4
        )


@pytest.fixture
def spec(tmp_path: Path) -> ShardSpec:
    make_model("granite", tmp_path)
    return ShardSpec(model_dir=tmp_path, dtype="float32", cpu_threads=1, eos_token_ids=(2,))


def start(shard: BucketedShard, limits: ShardLimits = LIMITS) -> KVBudget:
    shard.load(lambda loaded_bytes, total_bytes: None)
    return shard.warm_up(limits)


def test_shapes_that_are_not_ready_are_compiled_in_idle_time(spec: ShardSpec) -> None:
    device = BucketedCpuDevice()
    shard = make_shard(spec, BUCKETS, device)
    start(shard)
    before = device.num_compiled
    found = re.fullmatch(
        r"(\d+) shapes of a step, of which 2 are ready when serving starts and (\d+) are compiled in idle time",
        shard.notes[-1],
    )
    assert found
    assert int(found[1]) == int(found[2]) + 2
    while shard.use_idle_time():
        pass
    whole = device.num_compiled
    assert whole > 2 * before
    while shard.use_idle_time():
        pass
    assert device.num_compiled == whole
    assert shard.late_compiles == 0
    shard.close()


def test_strict_shapes_are_all_ready_when_serving_starts(spec: ShardSpec) -> None:
    device = BucketedCpuDevice()
    shard = make_shard(spec, FLAT, device)
    start(shard, replace(LIMITS, strict_shapes=True))
    assert re.fullmatch(r"(\d+) shapes of a step, of which \1 are ready when serving starts", shard.notes[-1])
    whole = device.num_compiled
    assert not shard.use_idle_time()
    assert device.num_compiled == whole
    shard.close()


def test_a_shape_that_is_not_ready_is_not_compiled_by_a_step(spec: ShardSpec) -> None:
    device = BucketedCpuDevice()
    shard = make_shard(spec, BUCKETS, device)
    served = serve(shard, SAMPLINGS)
    # Measured once and made once: what warm-up needs, and nothing while the requests ran.
    entries, sampling, forwards, scores = 2, 2 * 3, 2, 2
    assert device.num_compiled == 2 * (entries + sampling + forwards + scores)
    assert all(reply.request.token_ids for reply in served)


class RecompilingDevice(BucketedCpuDevice):
    """Compiles once more, behind its caller's back, for a while."""

    recompiles = False

    @property
    def num_compiled(self) -> int:
        self._num_compiled += self.recompiles
        return super().num_compiled


@pytest.mark.parametrize("strict", [False, True])
def test_what_is_compiled_for_a_step_is_counted_or_refused(spec: ShardSpec, strict: bool) -> None:
    device = RecompilingDevice()
    shard = make_shard(spec, BUCKETS, device)
    start(shard, replace(LIMITS, strict_shapes=strict))
    device.recompiles = True
    if strict:
        with pytest.raises(LateCompileError, match=r"1 programs were compiled for a step of enter \(64\)"):
            run(shard, FIRST_STEP)
    else:
        assert len(run(shard, FIRST_STEP)) == 1
        # The request's entry, its forward and its sampling.
        assert shard.late_compiles == 3
    shard.close()


class SmallDevice(BucketedCpuDevice):
    """Every program that was compiled takes a megabyte."""

    def memory(self) -> DeviceMemory:
        memory = super().memory()
        return replace(memory, free_bytes=memory.free_bytes - (self.num_compiled << 20))


def test_compiled_shapes_take_no_more_than_their_share(spec: ShardSpec) -> None:
    device = SmallDevice()
    shard = make_shard(spec, replace(BUCKETS, shapes_share=0.01), device)
    budget = start(shard)
    (reserve,) = (line for line in budget.memory if line.name == "compiled shapes")
    assert reserve.size_bytes == pytest.approx(0.01 * 0.9 * (4 << 30), rel=0.05)
    assert shard.notes[-1].endswith(
        f", as far as {reserve.size_bytes / 2**20:.1f} MiB of memory for compiled shapes go"
    )
    before = device.num_compiled
    while shard.use_idle_time():
        pass
    # The shapes that are ready when serving starts count, and so does the one that uses the reserve up.
    taken = device.num_compiled - before + 10
    assert reserve.size_bytes >> 20 <= taken <= (reserve.size_bytes >> 20) + 5
    shard.close()
    strict = make_shard(spec, replace(BUCKETS, shapes_share=0.01), SmallDevice())
    start(strict, replace(LIMITS, strict_shapes=True))
    assert "; the others are left out, since these use up" in strict.notes[-1]
    strict.close()


class FullDevice(BucketedCpuDevice):
    """Has memory for what warm-up needs, once to measure it and once to keep it, and for nothing more."""

    def compile(self, work: CompiledStep, state: DeviceState, inputs: tuple[torch.Tensor, ...]) -> CompiledStep:
        if self.num_compiled == 2 * (2 + 2 * 3 + 2 + 2):
            raise torch.OutOfMemoryError("the device is full")
        return super().compile(work, state, inputs)


@pytest.mark.parametrize("strict", [False, True])
def test_shapes_that_find_no_memory_are_left_out(
    spec: ShardSpec, caplog: pytest.LogCaptureFixture, strict: bool
) -> None:
    shard = make_shard(spec, BUCKETS, FullDevice())
    start(shard, replace(LIMITS, strict_shapes=strict))
    while shard.use_idle_time():
        pass
    assert "of 1 rows of 8 tokens, 2 blocks of each" in caplog.text
    assert ("; the others are left out, since the device has no memory for them" in shard.notes[-1]) is strict
    assert len(run(shard, FIRST_STEP)) == 1
    shard.close()


def test_rows_that_no_shape_takes_together_are_computed_by_turns(spec: ShardSpec) -> None:
    """Rows that share blocks may see more than the cache has, for which there is no list."""
    flat, padded = decode_shared_blocks(spec, FLAT), decode_shared_blocks(spec, BUCKETS)
    assert flat == padded == [padded[0]] * 3


def decode_shared_blocks(spec: ShardSpec, rules: BucketRules) -> list[int]:
    """Three slots with the same blocks and tokens: what a step of all of them makes."""
    shard = make_shard(spec, rules)
    budget = start(shard, replace(LIMITS, max_slots=3, max_total_tokens=32, kv_cache_tokens=32))
    assert budget.groups[0].blocks == 2
    for slot in range(3):
        plan = StepPlan(
            step=slot + 1,
            slots=[slot],
            epochs=[0],
            q_lens=[24],
            kv_lens=[24],
            samples=[True],
            num_decodes=0,
            new_slots=[NewSlot(slot, list(range(3, 27)), 24, SamplingParams())],
            appended_blocks=[AppendedBlocks(0, slot, 0, [0, 1])],
        )
        run(shard, plan)
    plan = StepPlan(
        step=4, slots=[0, 1, 2], epochs=[0] * 3, q_lens=[1] * 3, kv_lens=[25] * 3, samples=[True] * 3, num_decodes=3
    )
    decoded = run(shard, plan)
    shard.close()
    return decoded


def run(shard: BucketedShard, plan: StepPlan) -> list[int]:
    """The tokens of a step."""
    ticket = shard.launch(plan)
    shard.sample(ticket, None)
    return shard.collect(ticket).token_ids


def test_static_work_asks_for_no_values() -> None:
    values = torch.arange(4.0)
    with StaticShapesOnly(), pytest.raises(AssertionError, match="asks for values"):
        values.max().item()
    with StaticShapesOnly(), pytest.raises(AssertionError, match="asks for values"):
        values[values > 1]
    with StaticShapesOnly():
        torch.where(values > 1, values, 0)
