"""A shard that owns the whole model gives what the core's own shard gives."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from tests.support.architectures import VOCAB, make_model
from tests.support.greedy import make_prompts
from tests.unit.shards.test_bucketed import SAMPLINGS
from tgi_core.contract import Capabilities, ModelShard, ShardLimits, ShardSpec
from tgi_core.engine.limits import check_unsupported
from tgi_core.errors import StartupError
from tgi_core.sampling.params import SamplingParams
from tgi_core.scheduler import Request, Scheduler, SchedulerConfig
from tgi_core.testing.conformance.models import model_configs, write_checkpoint
from tgi_core.testing.conformance.running import Ask, start
from tgi_core.testing.reference_backend import ReferenceBackend
from tgi_core.testing.stand_ins.slot_shard import SlotShard
from tgi_core.testing.stand_ins.whole_model import SAMPLING, WholeModelCpuBackend

LIMITS = ShardLimits(max_slots=3, max_step_tokens=96, block_size=16, max_total_tokens=96, kv_cache_bytes=64 << 20)


def serve(shard: ModelShard, capabilities: Capabilities) -> list[tuple[list[int], list[float]]]:
    """Serve prompts of all lengths in three slots; their tokens and log-probabilities."""
    shard.load(lambda loaded_bytes, total_bytes: None)
    config = SchedulerConfig(
        max_slots=3,
        max_step_tokens=96,
        eos_token_ids=frozenset(),
        mixed_batches=capabilities.mixed_batches,
        chunked_prefill=capabilities.chunked_prefill,
        prefix_cache=capabilities.prefix_cache,
    )
    scheduler = Scheduler(config, shard.warm_up(LIMITS))
    prompts = make_prompts(VOCAB)
    prompts.append(prompts[0])
    requests = [
        Request(b"", number, list(prompt), 14, sampling, prompt_logprobs=number == 1)
        for number, (prompt, sampling) in enumerate(zip(prompts, SAMPLINGS, strict=True))
    ]
    logprobs: dict[int, list[float]] = {number: [] for number in range(len(requests))}
    for request in requests:
        scheduler.add(request)
    while scheduler.has_requests:
        plan = scheduler.plan()
        assert plan is not None
        ticket = shard.launch(plan)
        shard.sample(ticket, None)
        outputs = scheduler.apply(shard.collect(ticket))
        for request, logprob in zip(outputs.requests, outputs.logprobs, strict=True):
            logprobs[request.request_id].append(logprob)
    shard.close()
    logprobs[1] = [*(requests[1].prompt_logprobs or []), *logprobs[1]]
    return [(request.token_ids, logprobs[request.request_id]) for request in requests]


@pytest.mark.parametrize("name", ["granite", "gpt_oss"])
def test_equals_the_shard_of_the_core(name: str, tmp_path: Path) -> None:
    make_model(name, tmp_path)
    spec = ShardSpec(model_dir=tmp_path, dtype="float32", cpu_threads=1, eos_token_ids=(2,))
    reference, whole = ReferenceBackend(), WholeModelCpuBackend()
    expected = serve(reference.create_shard(spec), reference.capabilities())
    found = serve(whole.create_shard(spec), whole.capabilities())
    for (their_ids, their_logprobs), (our_ids, our_logprobs) in zip(expected, found, strict=True):
        assert our_ids == their_ids
        torch.testing.assert_close(our_logprobs, their_logprobs, rtol=1e-4, atol=1e-4)


def test_longer_than_the_model_is_refused(tmp_path: Path) -> None:
    make_model("granite", tmp_path)
    shard = WholeModelCpuBackend().create_shard(ShardSpec(model_dir=tmp_path, dtype="float32"))
    shard.load(lambda loaded_bytes, total_bytes: None)
    with pytest.raises(StartupError, match="256 tokens of the model"):
        shard.warm_up(ShardLimits(max_slots=1, max_step_tokens=512, block_size=16, max_total_tokens=512))
    shard.close()


@pytest.mark.parametrize("flag", ["kv_cache_bytes", "kv_cache_tokens", ""])
def test_sizes_of_the_cache_are_said_to_have_no_effect(flag: str, tmp_path: Path) -> None:
    make_model("granite", tmp_path)
    shard = WholeModelCpuBackend().create_shard(ShardSpec(model_dir=tmp_path, dtype="float32"))
    shard.load(lambda loaded_bytes, total_bytes: None)
    shard.warm_up(replace(LIMITS, **{"kv_cache_bytes": None, **({flag: 1 << 20} if flag else {})}))
    assert any("--kv-cache-memory" in note for note in shard.notes) is bool(flag)
    shard.close()


def test_what_a_library_of_whole_models_cannot_do_is_refused_when_it_is_declared(tmp_path: Path) -> None:
    make_model("granite", tmp_path)
    backend = WholeModelCpuBackend()
    lying = replace(backend.capabilities(), chunked_prefill=True)
    spec = ShardSpec(model_dir=tmp_path, dtype="float32", cpu_threads=1)
    with pytest.raises(StartupError, match="declares chunked_prefill, which") as refusal:
        SlotShard(spec, lying, backend.open_device(0))
    assert "False" in refusal.value.fix


class SamplingLibrary(WholeModelCpuBackend):
    """With ``--slots-cpu-sampling device``."""

    def create_shard(self, spec: ShardSpec) -> ModelShard:
        return super().create_shard(replace(spec, options={SAMPLING.flag: "device"}))


def test_a_library_that_samples(tmp_path: Path) -> None:
    """Its greedy tokens are those of the host, its others are likely ones; nothing is known of probabilities."""
    write_checkpoint(tmp_path, model_configs(16)["llama"])
    likely = SamplingParams(do_sample=True, temperature=3.0, top_p=0.01, seed=1)
    wild = SamplingParams(do_sample=True, temperature=50.0)
    asks = [Ask(list(prompt), 9) for prompt in make_prompts(VOCAB)]
    with start(WholeModelCpuBackend(), tmp_path, "float32", max_slots=2) as running:
        expected = [reply.token_ids for reply in running.serve(asks)]
        assert running.shard.unsupported_parameters == ()
    asks = [ask._replace(sampling=likely if index % 2 else ask.sampling) for index, ask in enumerate(asks)]
    with start(SamplingLibrary(), tmp_path, "float32", max_slots=2) as running:
        replies = running.serve(asks)
        assert len(set(running.serve([Ask([7, 9], 30, wild)])[0].token_ids)) > 5
        refused = check_unsupported(running.shard.unsupported_parameters)
    assert [reply.token_ids for reply in replies] == expected
    assert all(math.isnan(logprob) for reply in replies for logprob in reply.logprobs)
    names = {parameter.name for parameter in refused}
    supported = {"do_sample", "temperature", "top_k", "top_p", "choice", "watermark_gamma"}
    assert set(SamplingParams.__struct_fields__) - names == supported
    assert {"grammar", "logprobs", "prompt_logprobs"} <= names
