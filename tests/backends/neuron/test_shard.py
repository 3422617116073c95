"""The shard over the strict fake: every call has the compiled shapes, and no sequence feels another."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from tests.backends.neuron.conftest import FAKE_SDK
from tgi_core.contract import ModelShard, SampleInputs, ShardLimits, ShardSpec
from tgi_core.errors import ExitCode, StartupError
from tgi_core.sampling.params import SamplingParams, Tier
from tgi_core.testing.conformance.models.sizes import VOCAB_SIZE
from tgi_core.testing.conformance.oracle import Oracle
from tgi_core.testing.conformance.running import Ask, start
from tgi_core.testing.reference_backend import ReferenceBackend
from tgi_neuron.backend import SAMPLING, NeuronBackend
from tgi_neuron.shard import NeuronShard

LIMITS = ShardLimits(max_slots=3, max_step_tokens=64, block_size=16, max_total_tokens=64)
PROMPTS = ([7], [7, 9], list(range(3, 40)), [90, 4, 17], [7, 9])


class OnDevice(NeuronBackend):
    """With ``--neuron-sampling device``."""

    def create_shard(self, spec: ShardSpec) -> ModelShard:
        return super().create_shard(replace(spec, options={SAMPLING.flag: "device"}))


@contextmanager
def opened(
    folder: Path, limits: ShardLimits = LIMITS, *, dtype: str = "float32", device: bool = False, cores: int = 1
) -> Iterator[NeuronShard]:
    """A shard that is driven without a scheduler."""
    backend = OnDevice() if device else NeuronBackend()
    shard = backend.create_shard(ShardSpec(model_dir=folder, dtype=dtype, cpu_threads=1, world_size=cores))
    assert isinstance(shard, NeuronShard)
    try:
        shard.load(lambda done_bytes, total_bytes: None)
        shard.warm_up(limits)
        yield shard
    finally:
        shard.close()


def modeling() -> ModuleType:
    """The fake's model class and what is beside it, once it is in use."""
    return sys.modules["optimum.neuron.modeling"]


def best(output: Tensor) -> list[int]:
    return output.argmax(dim=-1).tolist()


def test_greedy_replies_are_the_models(fake_sdk: Path, model: Path) -> None:
    """Prompts of one and of two tokens among them, and more requests than slots."""
    with start(NeuronBackend(), model, "float32", max_slots=3) as running:
        replies = running.serve([Ask(list(prompt), 9) for prompt in PROMPTS])
        assert [cannot.name for cannot in running.shard.unsupported_parameters] == ["prompt_logprobs"]
    Oracle(model).check(replies, 1e-4, "host sampling")


def test_a_seed_gives_what_it_gives_elsewhere(fake_sdk: Path, model: Path) -> None:
    asks = [Ask([5, 6, 7], 9, SamplingParams(do_sample=True, seed=3, top_p=0.9, repetition_penalty=1.2))]
    with start(NeuronBackend(), model, "float32", max_slots=2) as running:
        found = running.serve(asks)[0].token_ids
    with start(ReferenceBackend(), model, "float32") as running:
        assert running.serve(asks)[0].token_ids == found


def test_the_device_chooses(fake_sdk: Path, model: Path) -> None:
    """Greedy tokens are the model's; those drawn are among the best; no log-probability is known."""
    asks = [Ask(list(prompt), 9) for prompt in PROMPTS]
    with start(NeuronBackend(), model, "float32", max_slots=3) as running:
        expected = [reply.token_ids for reply in running.serve(asks)]
    drawn = SamplingParams(do_sample=True, top_k=1, temperature=0.7, top_p=0.5)
    wild = SamplingParams(do_sample=True, temperature=100.0)
    asks = [ask._replace(sampling=drawn if index % 2 else ask.sampling) for index, ask in enumerate(asks)]
    with start(OnDevice(), model, "float32", max_slots=3) as running:
        replies = running.serve(asks)
        assert len(set(running.serve([Ask([7, 9], 30, wild)])[0].token_ids)) > 5
        names = {cannot.name for cannot in running.shard.unsupported_parameters}
    assert [reply.token_ids for reply in replies] == expected
    assert all(math.isnan(logprob) for reply in replies for logprob in reply.logprobs)
    assert {"seed", "typical_p", "min_p", "repetition_penalty", "logit_bias", "top_n", "watermark_delta"} <= names
    assert {"grammar", "logprobs", "prompt_logprobs"} <= names
    assert names.isdisjoint({"do_sample", "temperature", "top_k", "top_p", "choice"})


def test_parameters_as_the_device_takes_them(fake_sdk: Path, model: Path) -> None:
    with opened(model, device=True) as shard:
        sampling = SampleInputs(
            slots_B=torch.arange(4),
            positions_B=torch.zeros(4, dtype=torch.int32),
            temperature_B=torch.tensor([0.5, 2.0, 0.7, 1.0]),
            top_p_B=torch.tensor([0.5, 0.9, 1.0, 1.0]),
            top_k_B=torch.tensor([7, 1000, 0, 0], dtype=torch.int32),
            do_sample_B=torch.tensor([False, True, True, True]),
            seed_B=torch.zeros(4, dtype=torch.int64),
            choice_B=torch.zeros(4, dtype=torch.int32),
            tier=Tier.SAMPLED,
        )
        found = shard._parameters(sampling, 4)
    expected = [[1, 1, 1], [256, 0.9, 2.0], [256, 1.0, 0.7], [256, 1.0, 1.0]]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32))


@torch.inference_mode()
def test_a_sequence_that_sits_steps_out_keeps_its_cache(fake_sdk: Path, model: Path) -> None:
    """Decodes are given every row of the cache; those of absent sequences must change nothing that is read."""
    first, second = torch.tensor([3, 4, 5, 6]), torch.tensor([8, 9, 10])
    with opened(model) as shard:
        (token,) = best(shard.prefill(0, first, None))
        alone = []
        for position in range(4, 8):
            (token,) = best(shard.decode([0], torch.tensor([token]), torch.tensor([position]), None))
            alone.append(token)
    with opened(model) as shard:
        (token,) = best(shard.prefill(0, first, None))
        (other,) = best(shard.prefill(2, second, None))
        found = []
        for position in range(4, 8):
            for step in range(2):
                where = torch.tensor([3 + 2 * (position - 4) + step])
                (other,) = best(shard.decode([2], torch.tensor([other]), where, None))
            one_token = torch.tensor([11])
            shard.prefill(1, one_token, None)
            (token,) = best(shard.decode([0], torch.tensor([token]), torch.tensor([position]), None))
            found.append(token)
    assert found == alone


@torch.inference_mode()
def test_rows_come_back_in_the_order_of_the_slots(fake_sdk: Path, model: Path) -> None:
    prompts = {0: torch.tensor([3, 4]), 1: torch.tensor([50, 60, 70]), 2: torch.tensor([9])}
    with opened(model) as shard:
        for slot, ids_T in prompts.items():
            shard.prefill(slot, ids_T, None)
        ids_B, positions_B = torch.tensor([21, 22, 23]), torch.tensor([1, 2, 3])
        mixed_BV = shard.decode([2, 0, 1], ids_B, positions_B, None)
        again_BV = torch.cat(
            [shard.decode([slot], ids_B[[row]], positions_B[[row]], None) for row, slot in enumerate((2, 0, 1))]
        )
    assert mixed_BV.shape == (3, VOCAB_SIZE)
    torch.testing.assert_close(mixed_BV, again_BV)


@torch.inference_mode()
def test_a_vocabulary_that_is_filled_up_for_the_cores(fake_sdk: Path, model: Path) -> None:
    ids_T = torch.tensor([3, 4, 5])
    with opened(model) as shard:
        expected_1V = shard.prefill(0, ids_T, None)
    with opened(model, cores=2) as shard:
        found_1V = shard.prefill(0, ids_T, None)
    assert found_1V.shape == (1, VOCAB_SIZE)
    torch.testing.assert_close(found_1V, expected_1V)


def test_a_second_start_loads_what_the_first_has_compiled(
    fake_sdk: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(model) as shard:
        (folder,) = fake_sdk.iterdir()
        assert str(folder) in shard.notes[0]
    compiled = []
    export = modeling().NeuronModelForCausalLM.export.__func__

    def counted(cls: type, *arguments: object, **named: object) -> object:
        compiled.append(arguments)
        return export(cls, *arguments, **named)

    monkeypatch.setattr(modeling().NeuronModelForCausalLM, "export", classmethod(counted))
    with opened(model):
        assert not compiled
    for changes in (
        {"limits": replace(LIMITS, max_slots=2)},
        {"limits": replace(LIMITS, max_total_tokens=48)},
        {"dtype": "bfloat16"},
        {"device": True},
        {"cores": 2},
    ):
        before = len(compiled)
        with opened(model, **changes):
            assert len(compiled) == before + 1, changes
    # Other weights, or another compiler.
    (model / "model.safetensors").touch()
    with opened(model):
        assert len(compiled) == 6
    monkeypatch.setattr("neuronxcc.__version__", "2.22.1")
    with opened(model):
        assert len(compiled) == 7
    assert [path.name for path in fake_sdk.iterdir() if path.name.startswith(".")] == []


@torch.inference_mode()
def test_a_compiled_model_is_served_as_it_is(fake_sdk: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(model) as shard:
        expected = shard.prefill(0, torch.tensor([3, 4, 5]), None)
    (folder,) = fake_sdk.iterdir()
    with opened(folder, replace(LIMITS, max_slots=2, max_total_tokens=32)) as shard:
        torch.testing.assert_close(shard.prefill(1, torch.tensor([3, 4, 5]), None), expected)
    with (
        pytest.raises(StartupError, match="holds 3 requests at once, not 8") as refusal,
        opened(folder, replace(LIMITS, max_slots=8)),
    ):
        pass
    assert "--max-batch-size 3" in refusal.value.fix
    monkeypatch.setattr("neuronxcc.__version__", "2.22.1")
    with pytest.raises(StartupError, match=r"neuronx-cc 2\.21\.33363\.0, and this is 2\.22\.1"), opened(folder):
        pass


def test_what_the_library_says_becomes_a_refusal(
    fake_sdk: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "mistral"}))
    with pytest.raises(StartupError, match="Model type mistral is not supported") as refusal, opened(model):
        pass
    assert refusal.value.exit_code is ExitCode.MODEL
    (model / "config.json").write_text(json.dumps({**config, "model_type": "qwen2"}))
    with (
        pytest.raises(StartupError, match="no sampling into this model on 2 cores"),
        opened(model, device=True, cores=2),
    ):
        pass
    (model / "config.json").write_text(json.dumps(config))

    def fail(self: object, save_directory: str) -> None:
        raise SystemError("neuronx-cc terminated abnormally")

    monkeypatch.setattr(modeling().NeuronModelForCausalLM, "save_pretrained", fail)
    with pytest.raises(StartupError, match="SystemError: neuronx-cc terminated abnormally") as refusal, opened(model):
        pass
    assert refusal.value.exit_code is ExitCode.BACKEND
    monkeypatch.undo()


def test_a_compiled_model_without_its_programs(fake_sdk: Path, model: Path) -> None:
    with opened(model):
        (folder,) = fake_sdk.iterdir()
    (folder / "model.pt").unlink()
    with pytest.raises(StartupError, match=r"cannot be loaded: .*model\.pt") as refusal, opened(model):
        pass
    assert refusal.value.exit_code is ExitCode.BACKEND


def test_an_sdk_that_cannot_be_imported(fake_sdk: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optimum.neuron", None)
    with pytest.raises(StartupError, match="Neuron SDK cannot be imported: ModuleNotFoundError"), opened(model):
        pass


def test_the_fake_is_the_one_that_is_tested(fake_sdk: Path, model: Path) -> None:
    with opened(model):
        assert Path(str(modeling().__file__)).is_relative_to(FAKE_SDK)
