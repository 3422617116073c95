"""Compiled models that fit, and every way in which one does not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tgi_core.contract import ShardLimits, ShardSpec
from tgi_core.errors import ExitCode, StartupError
from tgi_neuron.artefact import CONFIG_NAME, CompiledFor, Wanted, check_artefact, is_artefact, read_artefact
from tgi_neuron.sdk import Sdk

FOLDER = Path("/models/compiled")
SDK = Sdk(model_class=None, compiler_version="2.21", library_version="0.4.5")
SPEC = ShardSpec(model_dir=FOLDER, dtype="bfloat16")
LIMITS = ShardLimits(max_slots=4, max_step_tokens=4096, block_size=16, max_total_tokens=1024)
WANTED = Wanted(SPEC, LIMITS, num_cores=2, library_samples=False)
COMPILED = CompiledFor(
    batch_size=4,
    sequence_length=1024,
    max_context_length=1024,
    tp_degree=2,
    torch_dtype="bfloat16",
    on_device_sampling=False,
    max_topk=256,
    continuous_batching=True,
    neuronxcc_version="2.21",
    optimum_neuron_version="0.4.5",
)


def refuse(compiled: CompiledFor, wanted: Wanted) -> StartupError:
    with pytest.raises(StartupError) as refusal:
        check_artefact(FOLDER, compiled, wanted, SDK)
    assert refusal.value.exit_code is ExitCode.BACKEND
    return refusal.value


def test_one_that_fits() -> None:
    check_artefact(FOLDER, COMPILED, WANTED, SDK)
    smaller = replace(LIMITS, max_slots=2, max_total_tokens=100)
    split = replace(SPEC, world_size=2)
    check_artefact(FOLDER, COMPILED, WANTED._replace(limits=smaller, spec=split), SDK)
    check_artefact(FOLDER, replace(COMPILED, batch_size=1, continuous_batching=False), wanted_slots(1), SDK)


def wanted_slots(slots: int) -> Wanted:
    return WANTED._replace(limits=replace(LIMITS, max_slots=slots))


@pytest.mark.parametrize(
    ("changes", "cause", "fix"),
    [
        ({"batch_size": 3}, "holds 3 requests at once, not 4", "--max-batch-size 3."),
        ({"sequence_length": 512}, "sequences have 512 tokens, not 1024", "--max-total-tokens 512."),
        ({"max_context_length": 256}, "sequences have 256 tokens, not 1024", "--max-total-tokens 256."),
        ({"torch_dtype": "float32"}, "computes in float32, not in bfloat16", "--dtype float32."),
        ({"on_device_sampling": True}, "gives tokens", "--neuron-sampling device, or serve the original model"),
        ({"tp_degree": 8}, "needs 8 cores of 2", "a larger machine, or serve the original model"),
        ({"neuronxcc_version": "2.19"}, "neuronx-cc 2.19, and this is 2.21", "Install neuronx-cc 2.19"),
        ({"optimum_neuron_version": "0.4.3"}, "optimum-neuron 0.4.3, and this is", "Install optimum-neuron 0.4.3"),
        ({"continuous_batching": False}, "prompts of a whole batch", "continuous_batching=True"),
        ({"prefill_chunk_size": 1024}, "prompts in chunks", "prefill_chunk_size=0"),
    ],
)
def test_one_that_does_not_fit(changes: dict[str, object], cause: str, fix: str) -> None:
    refusal = refuse(replace(COMPILED, **changes), WANTED)
    assert str(FOLDER) in refusal.cause
    assert cause in refusal.cause
    assert fix in refusal.fix


def test_another_split_and_another_sampler() -> None:
    assert "--num-shard 2" in refuse(COMPILED, WANTED._replace(spec=replace(SPEC, world_size=4))).fix
    assert "--neuron-sampling host" in refuse(COMPILED, WANTED._replace(library_samples=True)).fix


def test_everything_is_said_at_once() -> None:
    refusal = refuse(replace(COMPILED, batch_size=1, torch_dtype="float16", tp_degree=4), WANTED)
    assert refusal.cause.count("; ") == 2
    assert "--max-batch-size 1." in refusal.fix
    assert "--dtype float16." in refusal.fix


def test_reading(tmp_path: Path) -> None:
    assert not is_artefact(tmp_path)
    path = tmp_path / CONFIG_NAME
    path.write_bytes(msgspec.json.encode({**msgspec.structs.asdict(COMPILED), "fused_qkv": True}))
    assert is_artefact(tmp_path)
    assert read_artefact(tmp_path) == COMPILED
    path.write_text('{"batch_size": "four"}')
    with pytest.raises(StartupError, match="batch_size"):
        read_artefact(tmp_path)
