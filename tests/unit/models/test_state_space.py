"""State space models: transformers' tokens and logits, what their configurations and weights must be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.greedy import assert_greedy, make_prompts, reply_under_pressure
from tests.support.shards import KERNELS, start_shard
from tests.support.state_space_models import CONFIGS, VOCAB, make_model
from tests.support.states import step_rows
from tgi_core.contract import LoadProgress
from tgi_core.errors import ExitCode, StartupError, UnsupportedModelError
from tgi_core.model_folder import ModelFolder
from tgi_core.models.architecture import find_decoder
from tgi_core.models.choose import choose_model
from tgi_core.models.hf_config import HFConfig
from tgi_core.models.model import Loaded, LoadOptions
from tgi_core.models.state_space.config import read_dual, read_scan, read_scan_with_norms
from tgi_core.models.state_space.model import StateSpaceModel
from tgi_core.models.step import Step
from tgi_core.reference import ReferenceKernels
from tgi_core.shards.memory import TOKENS_WITHOUT_CACHE
from tgi_cpu.kernels import CpuKernels

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "kernels"), [*((name, "cpu") for name in CONFIGS), ("mamba", "reference"), ("mamba2", "reference")]
)
def test_tokens_and_logits_equal_transformers(name: str, kernels: str, tmp_path: Path) -> None:
    model = make_model(name, tmp_path)
    # Fewer slots than prompts: each is used again, with another request's states in it.
    replies = reply_under_pressure(tmp_path, KERNELS[kernels](), make_prompts(VOCAB), max_slots=2)
    assert_greedy(replies, lambda ids_1T: model(ids_1T, use_cache=False).logits)


# -- what a shard is told ---------------------------------------------------------------------------------------------


def test_a_shard_sizes_states_and_no_cache(tmp_path: Path) -> None:
    make_model("mamba2", tmp_path)
    model = choose_model(tmp_path)
    assert isinstance(model, StateSpaceModel)
    assert model.path == "architecture `mamba2` of tgi-serve"
    assert model.attention == ()
    assert model.group_of_layer == ()
    assert model.states == ((((3, 160), None), ((8, 16, 16), torch.float32)) * 4)
    shard, budget = start_shard(tmp_path, CpuKernels(), max_total_tokens=None, max_slots=6)
    shard.close()
    sizes = {line.name: line.size_bytes for line in budget.memory}
    assert sizes["slot states"] == 7 * 4 * 4 * (3 * 160 + 8 * 16 * 16)
    assert sizes["kv cache"] == 0
    assert budget.groups == []
    assert budget.has_states
    assert budget.max_total_tokens == TOKENS_WITHOUT_CACHE


def test_a_sequence_may_be_longer_where_it_is_asked_for(tmp_path: Path) -> None:
    make_model("mamba", tmp_path)
    shard, budget = start_shard(tmp_path, CpuKernels(), max_total_tokens=100_000, max_slots=2)
    shard.close()
    assert budget.max_total_tokens == 100_000
    with pytest.raises(StartupError, match="1048576 tokens"):
        start_shard(tmp_path, CpuKernels(), max_total_tokens=(1 << 20) + 1)


def test_steps_are_recorded_where_kernels_can_be(tmp_path: Path) -> None:
    class NotRecordable(ReferenceKernels):
        @property
        def captures_states(self) -> bool:
            return False

    make_model("mamba", tmp_path)
    model = choose_model(tmp_path)
    assert model.records(ReferenceKernels())
    assert not model.records(NotRecordable())


def test_it_is_no_decoder(tmp_path: Path) -> None:
    make_model("mamba", tmp_path)
    with pytest.raises(UnsupportedModelError, match="type `mamba` has a module of its own"):
        find_decoder(HFConfig.read(tmp_path))


# -- configurations ---------------------------------------------------------------------------------------------------

SCAN = {"model_type": "mamba", "vocab_size": 100, "hidden_size": 40, "num_hidden_layers": 2}
DUAL = {**SCAN, "model_type": "mamba2", "num_heads": 4, "head_dim": 20, "n_groups": 2}
READERS = {"mamba": read_scan, "mamba2": read_dual, "falcon_mamba": read_scan_with_norms}


def test_what_a_configuration_leaves_out() -> None:
    scan = read_scan(HFConfig(SCAN))
    assert (scan.inner_size, scan.taps, scan.norm_eps) == (80, 4, 1e-5)
    assert (scan.mixer.state_size, scan.mixer.rank, scan.mixer.norm_eps) == (16, 3, None)
    assert (scan.linear_bias, scan.conv_bias, scan.float_residual, scan.tied_head) == (False, True, True, True)
    dual = read_dual(HFConfig(DUAL))
    assert (dual.mixer.state_size, dual.mixer.dt_limit) == (128, (0.0, float("inf")))
    assert not dual.tied_head
    assert read_scan_with_norms(HFConfig({**SCAN, "mixer_rms_eps": 0.5})).mixer.norm_eps == 0.5
    assert read_scan(HFConfig({**SCAN, "time_step_rank": "auto"})).mixer.rank == 3


@pytest.mark.parametrize("infinity", ["Infinity", '{"__float__": "Infinity"}'])
def test_an_infinite_limit_as_python_and_as_transformers_write_it(infinity: str, tmp_path: Path) -> None:
    text = json.dumps({**DUAL, "time_step_limit": [0.25, None]}).replace("null", infinity)
    (tmp_path / "config.json").write_text(text)
    model = choose_model(tmp_path)
    assert isinstance(model, StateSpaceModel)
    assert model.spec.mixer.dt_limit == (0.25, float("inf"))
    assert ModelFolder(tmp_path).vocab_size == 100


@pytest.mark.parametrize(
    ("base", "changes", "told"),
    [
        (SCAN, {"hidden_act": "gelu"}, "`hidden_act` = 'gelu'"),
        (SCAN, {"rms_norm": False}, "`rms_norm` = False"),
        (SCAN, {"state_size": 0}, "`state_size` = 0"),
        (SCAN, {"time_step_rank": "some"}, "`time_step_rank` = 'some'"),
        (SCAN, {"conv_kernel": 65}, "from 1 to 64"),
        (SCAN, {"expand": 0}, "`expand` = 0"),
        (SCAN, {"vocab_size": None}, "`vocab_size` is missing"),
        (DUAL, {"n_groups": 3}, "it does not divide the 4 heads"),
        (DUAL, {"num_heads": 8}, "8 heads of 20 features are not the 80"),
        (DUAL, {"time_step_limit": [0.5]}, "`time_step_limit` = [0.5]"),
        (DUAL, {"time_step_limit": [0.5, 0.1]}, "the smaller one first"),
        (DUAL, {"time_step_limit": [0.0, "Infinite"]}, "it must be two numbers"),
        (DUAL, {"time_step_limit": [0.0, {"float": "Infinity"}]}, "it must be two numbers"),
    ],
)
def test_what_is_refused(base: dict[str, Any], changes: dict[str, Any], told: str) -> None:
    with pytest.raises(StartupError) as caught:
        READERS[base["model_type"]](HFConfig({**base, **changes}))
    assert told in str(caught.value)
    assert caught.value.exit_code is ExitCode.MODEL
    assert isinstance(caught.value, UnsupportedModelError) == (told in {"`hidden_act` = 'gelu'", "`rms_norm` = False"})


# -- weights ----------------------------------------------------------------------------------------------------------


def load(folder: Path, dtype: torch.dtype = torch.float32, load_format: str = "auto") -> Loaded:
    progress: LoadProgress = lambda loaded_bytes, total_bytes: None  # noqa: E731
    kernels = ReferenceKernels()
    return choose_model(folder).load(LoadOptions(load_format, dtype, CPU, kernels, [], progress))


def change(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


@torch.inference_mode()
def logits(folder: Path, dtype: torch.dtype = torch.float32, load_format: str = "auto") -> Tensor:
    """Those of every token of one sequence."""
    ids_T = torch.randint(VOCAB, (70,), generator=torch.Generator().manual_seed(1))
    model = load(folder, dtype, load_format).model
    states = [
        torch.full((2, *state.shape), torch.nan, dtype=state.dtype or dtype) for state in choose_model(folder).states
    ]
    step = Step(ids_T, torch.arange(len(ids_T)), [], step_rows([0], [0], [len(ids_T)]), [], [], states)
    return model.logits(model.hidden(step))


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda tensors: tensors.pop("backbone.layers.1.mixer.A_log"), "no tensor `backbone.layers.1.mixer.A_log`"),
        (lambda tensors: tensors.pop("backbone.layers.3.mixer.conv1d.bias"), "backbone.layers.3.mixer.conv1d.bias"),
        (lambda tensors: tensors.update({"backbone.layers.0.mixer.D": torch.ones(7)}), "has shape [7]"),
        (lambda tensors: tensors.update({"backbone.layers.4.norm.weight": torch.ones(64)}), "layers.4.norm.weight"),
    ],
    ids=["missing", "missing bias", "wrong shape", "surplus"],
)
def test_wrong_checkpoints_are_refused(edit: Callable[[dict[str, Tensor]], object], told: str, tmp_path: Path) -> None:
    make_model("mamba2", tmp_path)
    change(tmp_path, edit)
    with pytest.raises(StartupError) as caught:
        load(tmp_path)
    assert told in str(caught.value)
    assert caught.value.exit_code is ExitCode.MODEL


def test_the_embedding_by_its_authors_name(tmp_path: Path) -> None:
    make_model("mamba", tmp_path)
    expected_TV = logits(tmp_path)

    def rename(tensors: dict[str, Tensor]) -> None:
        tensors["backbone.embedding.weight"] = tensors.pop("backbone.embeddings.weight")

    change(tmp_path, rename)
    torch.testing.assert_close(logits(tmp_path), expected_TV, rtol=0, atol=0)


def test_a_tied_head_may_be_stored(tmp_path: Path) -> None:
    make_model("mamba", tmp_path)
    stored_bytes = load(tmp_path).weights_bytes
    change(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["backbone.embeddings.weight"].clone()}))
    assert load(tmp_path).weights_bytes == stored_bytes


def test_a_stored_head_that_is_not_the_table_is_used(tmp_path: Path) -> None:
    model = make_model("mamba", tmp_path)
    head_VE = model.get_input_embeddings().weight.flip(0).contiguous()
    expected_TV = logits(tmp_path).flip(-1)
    change(tmp_path, lambda tensors: tensors.update({"lm_head.weight": head_VE.detach()}))
    torch.testing.assert_close(logits(tmp_path), expected_TV)


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_rates_stay_in_float32(name: str, tmp_path: Path) -> None:
    make_model(name, tmp_path)
    exact_TV, rounded_TV = logits(tmp_path), logits(tmp_path, torch.bfloat16)

    def round_rates(tensors: dict[str, Tensor]) -> None:
        for key, tensor in tensors.items():
            if key.endswith(("A_log", "mixer.D", "dt_bias", "dt_proj.bias")):
                tensor.copy_(tensor.bfloat16())

    change(tmp_path, round_rates)
    # What rounding them would do to the others' result: so it was not done.
    assert not torch.equal(logits(tmp_path, torch.bfloat16), rounded_TV)
    assert (rounded_TV.float() - exact_TV).abs().mean() < 0.05 * exact_TV.abs().mean()


def test_the_residual_stream_has_the_type_that_is_asked_for(tmp_path: Path) -> None:
    make_model("mamba", tmp_path)
    exact_TV = logits(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    found = []
    for in_float32 in (True, False):
        (tmp_path / "config.json").write_text(json.dumps({**config, "residual_in_fp32": in_float32}))
        torch.testing.assert_close(logits(tmp_path), exact_TV, rtol=0, atol=0)
        found.append(logits(tmp_path, torch.bfloat16))
        assert (found[-1].float() - exact_TV).abs().mean() < 0.05 * exact_TV.abs().mean()
    assert not torch.equal(*found)


@pytest.mark.parametrize("name", ["mamba-biased", "mamba2"])
def test_random_weights_make_numbers(name: str, tmp_path: Path) -> None:
    make_model(name, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert logits(tmp_path, load_format="dummy").isfinite().all()
