"""A shard of static shapes gives what the one that takes any shape gives, and compiles nothing while it serves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.support.architectures import VOCAB, make_model
from tests.support.greedy import make_prompts
from tgi_core.contract import BucketRules, Ladder, ModelShard, ShardLimits, ShardSpec
from tgi_core.sampling.params import SamplingParams
from tgi_core.scheduler import Request, Scheduler, SchedulerConfig
from tgi_core.shards.bucketed import BucketedShard
from tgi_core.shards.buckets import ForwardShape, ShapeLimits, cheapest, forward_shapes
from tgi_core.testing.reference_backend import ReferenceBackend
from tgi_core.testing.stand_ins.bucketed import BucketedCpuBackend
from tgi_core.testing.stand_ins.static_shapes import StaticShapesOnly

LIMITS = ShardLimits(
    max_slots=6, max_step_tokens=24, block_size=16, max_total_tokens=96, kv_cache_bytes=64 << 20, kv_cache_tokens=128
)
BUCKETS = BucketRules(
    prefill_lengths=Ladder(smallest=8),
    prefill_columns=Ladder(smallest=2, growth=4),
    decode_blocks=Ladder(smallest=2, growth=4),
)
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(do_sample=True, temperature=0.8, top_k=20, top_p=0.9, seed=5),
    SamplingParams(do_sample=True, seed=2**63 + 1, repetition_penalty=1.3, frequency_penalty=0.2, top_n=3),
    SamplingParams(top_n=2, raw_logprobs=True, logit_bias={7: 4.0}, bad_words=((3, 4),), min_tokens=3),
    SamplingParams(do_sample=True, typical_p=0.7, min_p=0.02, seed=9),
    SamplingParams(do_sample=True, seed=11, allowed_token_ids=(1, 2, 3, 50), watermark_delta=2.0, watermark_gamma=0.5),
)


class Reply:
    """What one request got."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.logprobs: list[float] = []
        self.tops: list[tuple[list[int], list[float]]] = []


def serve(shard: ModelShard, folder: Path, samplings: Sequence[SamplingParams], *, idle: bool = False) -> list[Reply]:
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
        elif idle and not flights:
            shard.use_idle_time()
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


@pytest.mark.parametrize("name", ["gpt_oss", "bloom", "qwen3_moe", "deepseek_v3", "llama4"])
def test_equals_the_shard_of_any_shape(name: str, tmp_path: Path) -> None:
    make_model(name, tmp_path)
    spec = ShardSpec(model_dir=tmp_path, dtype="float32", cpu_threads=1, eos_token_ids=(2,))
    expected = serve(ReferenceBackend().create_shard(spec), tmp_path, SAMPLINGS)
    found = serve(BucketedCpuBackend().create_shard(spec), tmp_path, SAMPLINGS)
    for theirs, ours in zip(expected, found, strict=True):
        assert ours.request.token_ids == theirs.request.token_ids
        torch.testing.assert_close(ours.logprobs, theirs.logprobs, rtol=1e-4, atol=1e-4)
        assert [ids for ids, _ in ours.tops] == [ids for ids, _ in theirs.tops]
    assert expected[1].request.prompt_logprobs is not None
    torch.testing.assert_close(
        found[1].request.prompt_logprobs, expected[1].request.prompt_logprobs, rtol=1e-4, atol=1e-4
    )


def test_no_shape_is_compiled_while_serving(tmp_path: Path) -> None:
    make_model("granite", tmp_path)
    backend = BucketedCpuBackend()
    device = backend.open_device(0)
    spec = ShardSpec(model_dir=tmp_path, dtype="float32", cpu_threads=1)
    shard = BucketedShard(spec, backend.capabilities(), device, backend.kernels(device))
    shard.load(lambda loaded_bytes, total_bytes: None)
    shard.warm_up(LIMITS)
    before = device.num_compiled
    assert any("of which 2 are ready" in note for note in shard.notes)
    while shard.use_idle_time():
        pass
    whole = device.num_compiled
    assert whole > 2 * before
    while shard.use_idle_time():
        pass
    assert device.num_compiled == whole


def test_a_shape_that_is_not_ready_is_not_compiled_by_a_step(tmp_path: Path) -> None:
    make_model("granite", tmp_path)
    spec = ShardSpec(model_dir=tmp_path, dtype="float32", cpu_threads=1, eos_token_ids=(2,))
    backend = BucketedCpuBackend()
    device = backend.open_device(0)
    shard = BucketedShard(spec, backend.capabilities(), device, backend.kernels(device))
    served = serve(shard, tmp_path, SAMPLINGS)
    # Measured once and made once: what warm-up needs, and nothing while the requests ran.
    entries, sampling, forwards, scores = 2, 2 * 3, 2, 2
    assert device.num_compiled == 2 * (entries + sampling + forwards + scores)
    assert all(reply.request.token_ids for reply in served)


def test_shapes_cover_every_step() -> None:
    limits = ShapeLimits(max_slots=10, max_step_tokens=100, max_q_len=64, max_columns=9)
    shapes = forward_shapes(limits, BUCKETS, 16)
    assert len(shapes) == len(set(shapes))
    cover = shapes[:2]
    for columns in range(1, 10):
        for rows in range(1, 11):
            assert cheapest(cover, ForwardShape(rows, 1, columns)) is not None
            exact = cheapest(shapes, ForwardShape(rows, 1, columns))
            assert exact is not None
            assert exact.rows < 2 * rows or exact.rows == 10
        for q_len in range(2, 65):
            assert cheapest(cover, ForwardShape(1, q_len, columns)) is not None
    assert all(shape.rows * shape.q_len <= 100 for shape in shapes)
    assert cheapest(shapes, ForwardShape(11, 1, 1)) is None


def test_static_work_asks_for_no_values() -> None:
    values = torch.arange(4.0)
    with StaticShapesOnly(), pytest.raises(AssertionError, match="asks for values"):
        values.max().item()
    with StaticShapesOnly(), pytest.raises(AssertionError, match="asks for values"):
        values[values > 1]
    with StaticShapesOnly():
        torch.where(values > 1, values, 0)
