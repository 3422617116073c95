"""Programs that are compiled while requests wait: from the shard to the metrics' source."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.architectures import make_model
from tests.support.engines import WORKER, MemoryChannel, TestEngine, write_null_model
from tgi_core.contract import ShardLimits, ShardSpec
from tgi_core.engine.client import EngineClient
from tgi_core.engine.frames import EngineStats, StepFrame, Submit, pack_ids
from tgi_core.engine.loop import EngineLoop
from tgi_core.errors import LateCompileError
from tgi_core.sampling import SamplingParams
from tgi_core.scheduler import Scheduler, SchedulerConfig
from tgi_core.shards.bucketed import BucketedShard
from tgi_core.testing.null_backend import NullCosts, NullShard
from tgi_core.testing.stand_ins.bucketed import BucketedCpuBackend, BucketedCpuDevice


class CompilingShard(NullShard):
    """Has compiled a program more with every other step."""

    @property
    def late_compiles(self) -> int:
        return len(self._prompt_lens)


def test_the_shards_count_is_in_every_frame(tmp_path: Path) -> None:
    spec = ShardSpec(model_dir=write_null_model(tmp_path / "model"), dtype="float32")
    engine = TestEngine(tmp_path / "model", shard=CompilingShard(spec, NullCosts()))
    for number in range(2):
        engine.submit(number, [5, 6], 3)
        engine.run_until_idle()
    counts = [frame.stats.late_compiles for frame in engine.frames()]
    assert counts == sorted(counts)
    assert counts[-1] == 1, "both requests had the same slot"


def test_a_new_engine_counts_on() -> None:
    client = EngineClient()
    for counts in ((1, 2), (0, 3)):
        for count in counts:
            client.stats = EngineStats(late_compiles=count)
        client.engine_down("a step hung")
    assert client.late_compiles == 5
    client.stats = EngineStats(late_compiles=1)
    assert client.late_compiles == 6


class FakeCompiler(BucketedCpuDevice):
    """Compiles once more whenever it is told so, as a library may that was given a new shape."""

    surprises = 0

    @property
    def num_compiled(self) -> int:
        return self._num_compiled + self.surprises


def serve_bucketed(folder: Path, surprises: int, *, strict: bool) -> list[int]:
    """The count in each frame of an engine on static shapes, in whose second request the compiler runs."""
    make_model("granite", folder)
    backend, device, channel = BucketedCpuBackend(), FakeCompiler(), MemoryChannel()
    capabilities = backend.capabilities()
    spec = ShardSpec(model_dir=folder, dtype="float32", cpu_threads=1)
    shard = BucketedShard(spec, capabilities, device, backend.kernels(device))
    shard.load(lambda done, total: None)
    limits = ShardLimits(
        max_slots=2,
        max_step_tokens=16,
        block_size=16,
        max_total_tokens=32,
        kv_cache_bytes=16 << 20,
        kv_cache_tokens=64,
        strict_shapes=strict,
    )
    scheduler = Scheduler(
        SchedulerConfig(max_slots=2, max_step_tokens=16, eos_token_ids=frozenset(), mixed_batches=False),
        shard.warm_up(limits),
    )
    # What is compiled in idle time is not late.
    while shard.use_idle_time():
        pass
    loop = EngineLoop(shard, scheduler, channel, run_ahead=capabilities.run_ahead, max_total_tokens=32)
    try:
        for number in range(2):
            device.surprises = number * surprises
            channel.inbox.append((WORKER, Submit(number, pack_ids([5, 6, 7]), 4, SamplingParams())))
            while channel.inbox or scheduler.has_requests or loop.has_work:
                loop.iterate()
    finally:
        shard.close()
    return [message.stats.late_compiles for _, message in channel.sent if isinstance(message, StepFrame)]


@pytest.mark.parametrize("strict", [False, True])
def test_nothing_is_compiled_for_requests(tmp_path: Path, strict: bool) -> None:
    assert set(serve_bucketed(tmp_path, 0, strict=strict)) == {0}


def test_a_compiler_that_runs_in_a_step_is_counted(tmp_path: Path) -> None:
    assert serve_bucketed(tmp_path, 3, strict=False)[-1] == 3


def test_and_ends_a_strict_engine(tmp_path: Path) -> None:
    with pytest.raises(LateCompileError, match="3 programs were compiled"):
        serve_bucketed(tmp_path, 3, strict=True)
