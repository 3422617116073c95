"""What the loader refuses, what it merges, and how much it holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.driver import Driver, Generation
from tests.support.shards import WatchedReference, start_shard
from tests.support.tiny_models import make_model
from tgi_core.contract.kernels import PackedWeight
from tgi_core.errors import ExitCode, StartupError
from tgi_core.models import ARCHITECTURES, CheckpointSource, HFConfig, RandomSource, load_decoder_weights
from tgi_core.models.decoder_weights import DecoderWeights
from tgi_core.models.family import Architecture
from tgi_core.models.names import WeightNames
from tgi_core.reference import ReferenceKernels
from tgi_core.weights.checkpoint import Checkpoint

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    make_model("llama-gqa-bias", folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    (tmp_path / "config.json").write_text((saved / "config.json").read_text())
    save_file(load_file(saved / "model.safetensors"), tmp_path / "model.safetensors")
    return tmp_path


def llama() -> Architecture:
    return next(each for each in ARCHITECTURES if each.model_type == "llama")


def load(
    folder: Path,
    architecture: Architecture | None = None,
    kernels: ReferenceKernels | None = None,
    progress: Callable[[int, int], None] = lambda loaded_bytes, total_bytes: None,
    dtype: torch.dtype = torch.float32,
) -> DecoderWeights:
    architecture = architecture or llama()
    spec = architecture.build(HFConfig.read(folder))
    source = CheckpointSource(Checkpoint.open(folder), architecture, dtype, CPU, progress)
    return load_decoder_weights(spec, architecture.names, source, kernels or ReferenceKernels())


def change(folder: Path, edit: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def refusal(folder: Path) -> str:
    with pytest.raises(StartupError) as caught:
        load(folder)
    assert caught.value.exit_code is ExitCode.MODEL
    return str(caught.value)


def test_missing_tensor(folder: Path) -> None:
    change(folder, lambda tensors: tensors.__delitem__("model.layers.2.mlp.up_proj.weight"))
    assert "model.layers.2.mlp.up_proj.weight" in refusal(folder)


def test_missing_bias(folder: Path) -> None:
    change(folder, lambda tensors: tensors.__delitem__("model.layers.0.self_attn.o_proj.bias"))
    assert "model.layers.0.self_attn.o_proj.bias" in refusal(folder)


def test_unexpected_tensor(folder: Path) -> None:
    change(folder, lambda tensors: tensors.update({"model.layers.4.mlp.up_proj.weight": torch.zeros(2)}))
    assert "model.layers.4.mlp.up_proj.weight" in refusal(folder)


def test_misshaped_tensor(folder: Path) -> None:
    change(folder, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(63)}))
    text = refusal(folder)
    assert "[63]" in text
    assert "[64]" in text


def test_rotary_buffers_of_old_checkpoints_are_ignored(folder: Path) -> None:
    change(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}))
    load(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool])
def test_whole_numbers_are_no_weights(folder: Path, dtype: torch.dtype) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    change(folder, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    with pytest.raises(StartupError, match=rf"`{name}` in model\.safetensors has type {str(dtype)[6:]}"):
        load(folder)


def tie(folder: Path) -> None:
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'))


def test_a_tied_head_may_be_stored(folder: Path) -> None:
    tie(folder)
    change(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    weights = load(folder)
    assert weights.head.weight is weights.embedding_VE


def test_a_stored_head_that_is_not_the_table_is_used_whatever_the_configuration_says(folder: Path) -> None:
    untied = load(folder)
    tie(folder)
    weights = load(folder)
    assert torch.equal(weights.head.weight, untied.head.weight)
    assert not torch.equal(weights.head.weight, weights.embedding_VE)
    assert weights.size_bytes == untied.size_bytes


def test_merging(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    layer = load(folder, dtype=torch.bfloat16).layers[1]
    prefix = "model.layers.1.self_attn"
    parts = [tensors[f"{prefix}.{name}_proj.weight"] for name in "qkv"]
    assert torch.equal(layer.mixer.qkv.weight, torch.cat(parts).bfloat16())
    assert layer.mixer.qkv.bias is not None
    assert torch.equal(
        layer.mixer.qkv.bias, torch.cat([tensors[f"{prefix}.{name}_proj.bias"] for name in "qkv"]).bfloat16()
    )


def test_a_checkpoint_that_stores_weights_merged(folder: Path) -> None:
    expected = load(folder).layers

    def merge(tensors: dict[str, Tensor]) -> None:
        for layer in range(4):
            for kind in ("weight", "bias"):
                attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
                tensors[f"{attention}.qkv_proj.{kind}"] = torch.cat(
                    [tensors.pop(f"{attention}.{name}_proj.{kind}") for name in "qkv"]
                )
                tensors[f"{mlp}.gate_up_proj.{kind}"] = torch.cat(
                    [tensors.pop(f"{mlp}.{name}_proj.{kind}") for name in ("gate", "up")]
                )

    change(folder, merge)
    names = WeightNames(qkv=("model.layers.{}.self_attn.qkv_proj",), gate_up=("model.layers.{}.mlp.gate_up_proj",))
    for layer, whole in zip(load(folder, replace(llama(), names=names)).layers, expected, strict=True):
        assert torch.equal(layer.mixer.qkv.weight, whole.mixer.qkv.weight)
        assert torch.equal(layer.mlp.up.weight, whole.mlp.up.weight)


def test_progress_grows_to_the_total(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    load(folder, progress=lambda loaded_bytes, total_bytes: seen.append((loaded_bytes, total_bytes)))
    loaded = [loaded_bytes for loaded_bytes, _ in seen]
    assert loaded == sorted(loaded)
    assert seen[-1] == (Checkpoint.open(folder).total_bytes,) * 2


def test_size_counts_a_packed_copy_of_a_tied_table(folder: Path) -> None:
    class Packs(ReferenceKernels):
        def pack_linear(self, weight_NK: Tensor) -> PackedWeight:
            return weight_NK.clone()

    tensors = load_file(folder / "model.safetensors")
    stored_bytes = sum(tensor.nbytes for tensor in tensors.values())
    assert load(folder).size_bytes == stored_bytes
    tie(folder)
    change(folder, lambda tensors: tensors.pop("lm_head.weight"))
    assert load(folder, kernels=Packs()).size_bytes == stored_bytes
    assert load(folder).size_bytes == stored_bytes - tensors["lm_head.weight"].nbytes


def test_dummy_weights_keep_activations_sane(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((saved / "config.json").read_text())
    kernels = WatchedReference()
    shard, budget = start_shard(tmp_path, kernels, load_format="dummy")
    kernels.logits.clear()
    Driver(shard, budget).run([Generation([1, 2, 3], 4)])
    shard.close()
    logits = torch.stack(kernels.logits[0])
    assert 0.2 < logits.std().item() < 5


def test_dummy_weights_are_the_same_every_time() -> None:
    first = RandomSource(torch.float32, CPU).take("a.weight", (3, 4))
    assert torch.equal(first, RandomSource(torch.float32, CPU).take("b.weight", (3, 4)))


def test_a_device_without_random_numbers_gets_the_hosts() -> None:
    nowhere = torch.device("meta")
    tensor = RandomSource(torch.float32, nowhere).take("a.weight", (3, 4))
    assert (tensor.device, tensor.shape) == (nowhere, (3, 4))
