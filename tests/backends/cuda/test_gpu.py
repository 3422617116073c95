"""The CUDA backend on a real GPU: tokens, log-probabilities and memory."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from tests.support.driver import Driver, Generation
from tests.support.engines import WORKER, MemoryChannel
from tests.support.tiny_models import NEW_TOKENS, make_model, reference
from tgi_core.contract import Capabilities, GraphMode, ShardLimits, ShardSpec
from tgi_core.engine.frames import Cancel, Submit, pack_ids
from tgi_core.engine.loop import EngineLoop
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling import SamplingParams
from tgi_core.scheduler import Scheduler, SchedulerConfig
from tgi_core.shards import EagerShard
from tgi_core.shards.cpu_device import CpuDevice
from tgi_core.testing.sampling_rows import EVERY_PARAMETER
from tgi_cuda.backend import CudaBackend

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

LIMITS = ShardLimits(max_slots=6, max_step_tokens=64, block_size=16, max_total_tokens=128, kv_cache_bytes=64 << 20)
MODELS = ["llama", "llama-gqa-bias", "mistral-window", "qwen3", "gemma3_text"]


def start_shard(folder: Path, dtype: str, graph: GraphMode) -> EagerShard:
    backend = CudaBackend()
    device = backend.open_device(0)
    capabilities = replace(backend.capabilities(), graph=graph)
    shard = EagerShard(ShardSpec(model_dir=folder, dtype=dtype), capabilities, device, backend.kernels(device))
    shard.load(lambda done, total: None)
    return shard


@pytest.mark.parametrize("graph", [GraphMode.DECODE, GraphMode.NONE])
@pytest.mark.parametrize("model", MODELS)
def test_greedy_tokens_equal_the_cpus_in_float32(model: str, graph: GraphMode, tmp_path: Path) -> None:
    """Alone in chunks and together, at depth 0 and 1."""
    expected = reference(make_model(model, tmp_path))
    shard = start_shard(tmp_path, "float32", graph)
    budget = shard.warm_up(LIMITS)
    for max_step_tokens, depth in ((64, 1), (64, 0), (13, 1)):
        generations = [Generation(prompt, NEW_TOKENS) for prompt in expected.prompts]
        Driver(shard, budget, max_step_tokens=max_step_tokens, depth=depth, seed=depth).run(generations)
        assert [generation.token_ids for generation in generations] == expected.continuations
    shard.close()


@pytest.mark.parametrize("model", MODELS)
def test_bfloat16_is_as_near_to_float32_as_transformers_in_bfloat16(model: str, tmp_path: Path) -> None:
    """Of the first token's log-probability, since later ones may follow another text."""
    hf_model = make_model(model, tmp_path)
    expected = reference(hf_model)
    hf_model.bfloat16()
    shard = start_shard(tmp_path, "bfloat16", GraphMode.DECODE)
    budget = shard.warm_up(LIMITS)
    generations = [Generation(prompt, 1) for prompt in expected.prompts]
    Driver(shard, budget, max_step_tokens=64, depth=1, seed=0).run(generations)
    ours, theirs = [], []
    for generation, prompt, logits in zip(generations, expected.prompts, expected.logits, strict=True):
        exact = logits[0].log_softmax(-1)
        with torch.inference_mode():
            rounded = hf_model(torch.tensor([prompt])).logits[0, -1].float().log_softmax(-1)
        (token_id,), (logprob,) = generation.token_ids, generation.logprobs
        ours.append(abs(logprob - float(exact[token_id])))
        theirs.append(float((rounded - exact).abs().max()))
    assert max(ours) <= 2 * max(theirs)
    shard.close()


@pytest.mark.parametrize("graph", [GraphMode.DECODE, GraphMode.NONE])
def test_every_sampling_parameter_gives_the_references_tokens(graph: GraphMode, tmp_path: Path) -> None:
    """In one batch on the GPU and one by one through the reference kernels on the CPU, in float32."""
    make_model("qwen3", tmp_path)
    spec = ShardSpec(model_dir=tmp_path, dtype="float32", eos_token_ids=(5,))
    backend = CudaBackend()
    device = backend.open_device(0)
    capabilities = replace(backend.capabilities(), graph=graph)
    shard = EagerShard(spec, capabilities, device, backend.kernels(device))
    oracle = EagerShard(spec, Capabilities(), CpuDevice(), ReferenceKernels())
    limits = replace(LIMITS, max_slots=len(EVERY_PARAMETER))

    def run(shard: EagerShard, batches: list[list[SamplingParams]]) -> list[Generation]:
        shard.load(lambda done, total: None)
        budget = shard.warm_up(limits)
        driver = Driver(shard, budget, max_step_tokens=32, depth=1)
        generations = []
        for batch in batches:
            of_batch = [
                Generation([7 + EVERY_PARAMETER.index(params), 9, 11, 12], NEW_TOKENS, params) for params in batch
            ]
            driver.run(of_batch)
            generations += of_batch
        shard.close()
        return generations

    together = run(shard, [list(EVERY_PARAMETER)])
    alone = run(oracle, [[params] for params in EVERY_PARAMETER])
    for ours, theirs in zip(together, alone, strict=True):
        assert ours.token_ids == theirs.token_ids, ours.sampling
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-3), ours.sampling


def test_ten_thousand_mixed_requests_leave_no_memory_behind(tmp_path: Path) -> None:
    """Random lengths, a third cancelled: blocks and allocated memory end where they were."""
    make_model("qwen3", tmp_path)
    shard = start_shard(tmp_path, "bfloat16", GraphMode.DECODE)
    limits = replace(LIMITS, max_slots=64, max_step_tokens=512, kv_cache_bytes=8 << 20)
    budget = shard.warm_up(limits)
    config = SchedulerConfig(max_slots=64, max_step_tokens=512, eos_token_ids=frozenset({5}))
    scheduler = Scheduler(config, budget)
    channel = MemoryChannel()
    loop = EngineLoop(shard, scheduler, channel, run_ahead=1, max_total_tokens=budget.max_total_tokens)
    rng = random.Random(0)
    allocated: list[int] = []
    for wave in range(20):
        for number in range(500):
            request_id = wave * 500 + number
            prompt = pack_ids([rng.randrange(160) for _ in range(rng.randint(1, 90))])
            penalty = rng.choice([0.0, 0.0, 0.5])
            sampling = SamplingParams(
                do_sample=rng.random() < 0.5, seed=number, top_k=rng.choice([0, 5]), presence_penalty=penalty
            )
            channel.inbox.append((WORKER, Submit(request_id, prompt, rng.randint(1, 30), sampling)))
        steps = 0
        while scheduler.has_requests or loop.has_work or channel.inbox:
            if steps % 4 == 0:
                channel.inbox.append((WORKER, Cancel(wave * 500 + rng.randrange(500))))
            loop.iterate()
            steps += 1
        channel.sent.clear()
        gc.collect()
        torch.cuda.synchronize()
        allocated.append(torch.cuda.memory_allocated())
        assert all(pool.num_used == 0 for pool in scheduler.kv.pools)
    # The first waves size the allocator's pools for shapes not seen in warm-up.
    assert max(allocated[10:]) <= max(allocated[:10])
    shard.close()
