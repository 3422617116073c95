"""Intel's Neural Compressor for real, on the host: measure, then multiply in 8 bits.

Run by ``make test-backends`` only. Needs the packages of ``requirements.txt``. The library looks for a card when it is
imported, so that the fake SDK must not be there: of the SDK nothing is stood in for but the two calls around the
library's own.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyhlml
import pytest
import torch
from neural_compressor.torch.quantization import FP8Config
from torch import Tensor

from tests.backends.gaudi.fake import FAKE_SDK
from tgi_core.contract import Backend, Device, Kernels, ModelShard, ShardSpec
from tgi_core.contract.kernels import PackedWeight
from tgi_core.errors import StartupError
from tgi_core.reference.padded import PaddedKernels
from tgi_core.shards import BucketedShard
from tgi_core.testing.conformance.models import model_configs, write_checkpoint
from tgi_core.testing.conformance.running import make_asks, start
from tgi_core.testing.reference_backend import HostDevice
from tgi_core.testing.stand_ins.bucketed import BucketedCpuBackend
from tgi_gaudi.neural_compressor import CompressedLinears


@pytest.fixture
def initialized(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the SDK was told, in order: "environment", and the model whose scales are constants."""
    told: list[Any] = []
    core = ModuleType("habana_frameworks.torch.core")
    core.hpu_inference_set_env = lambda model=None: told.append("environment")  # type: ignore[attr-defined]
    core.hpu_initialize = lambda model, mark_only_scales_as_const=False: told.append(  # type: ignore[attr-defined]
        (model, mark_only_scales_as_const)
    )
    package = ModuleType("habana_frameworks.torch")
    package.core = core  # type: ignore[attr-defined]
    for name, module in (("habana_frameworks", ModuleType("habana_frameworks")), (package.__name__, package)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, core.__name__, core)
    return told


def write_config(folder: Path, mode: str, **more: str) -> str:
    """A configuration that works without a card; see the library's documentation."""
    path = folder / f"{mode}.json"
    config = {
        "mode": mode,
        "observer": "maxabs",
        "dump_stats_path": str(folder / "stats"),
        "measure_on_hpu": False,
        "use_qdq": "True",
        **more,
    }
    path.write_text(json.dumps(config))
    return str(path)


def multiply(linears: CompressedLinears, weights: list[Tensor], x_TK: Tensor) -> Tensor:
    """Two linears, one after the other."""
    packed = [linears.pack(weight_NK.clone()) for weight_NK in weights]
    linears.finish()
    for weight in packed:
        x_TK = linears.apply(x_TK, weight, None)
    linears.close()
    return x_TK


@pytest.mark.parametrize("method", ["maxabs_pow2", "unit_scale"])
@torch.inference_mode()
def test_linears_are_measured_and_then_multiply_in_8_bits(initialized: list[Any], tmp_path: Path, method: str) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(64, 48, generator=generator), torch.randn(32, 64, generator=generator)]
    x_TK = torch.randn(5, 48, generator=generator)
    expected_TN = x_TK @ weights[0].T @ weights[1].T
    measuring = CompressedLinears(write_config(tmp_path, "MEASURE"))
    assert measuring.measures
    torch.testing.assert_close(multiply(measuring, weights, x_TK), expected_TN)
    assert {path.suffix for path in tmp_path.glob("stats*")} == {".npz", ".json"}
    assert initialized == ["environment"]
    quantized = CompressedLinears(write_config(tmp_path, "QUANTIZE", scale_method=method))
    assert not quantized.measures
    error_TN = multiply(quantized, weights, x_TK) - expected_TN
    assert 0 < error_TN.norm() / expected_TN.norm() < 0.08
    model, scales_are_constants = initialized[-1]
    assert scales_are_constants
    state = model.state_dict()
    assert {name: tensor.dtype for name, tensor in state.items() if name.endswith("weight")} == {
        "linears.0.weight": torch.float8_e4m3fn,
        "linears.1.weight": torch.float8_e4m3fn,
    }


def test_a_configuration_that_the_library_does_not_take(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(StartupError, match="cannot be used"):
        CompressedLinears(str(path))
    assert FP8Config.from_json_file(write_config(tmp_path, "MEASURE")).measure


class CompressedKernels(PaddedKernels):
    """The reference with the library's linears."""

    def __init__(self, linears: CompressedLinears) -> None:
        self._linears = linears

    def pack_linear(self, weight_NK: Tensor) -> PackedWeight:
        return self._linears.pack(weight_NK)

    def linear(self, x_TK: Tensor, weight: PackedWeight, bias_N: Tensor | None) -> Tensor:
        return self._linears.apply(x_TK, weight, bias_N)


class CompressedShard(BucketedShard):
    """What ``GaudiShard`` does, on the host."""

    def __init__(self, spec: ShardSpec, backend: Backend, linears: CompressedLinears) -> None:
        super().__init__(spec, backend.capabilities(), backend.open_device(0), CompressedKernels(linears))
        self._linears = linears

    def _load(self, progress: Any) -> None:
        super()._load(progress)
        self._linears.finish()

    def _release(self) -> None:
        self._linears.close()
        super()._release()


class CompressedBackend(BucketedCpuBackend):
    """The stand-in, with the linears that a configuration asks for; steps run as they are."""

    def __init__(self, config_path: str) -> None:
        self._config_path = config_path

    def open_device(self, local_index: int) -> Any:
        return HostDevice()

    def kernels(self, device: Device) -> Kernels:
        return PaddedKernels()

    def create_shard(self, spec: ShardSpec) -> ModelShard:
        return CompressedShard(spec, self, CompressedLinears(self._config_path))


def test_a_whole_model_is_measured_and_then_multiplies_in_8_bits(initialized: list[Any], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_checkpoint(folder, model_configs(16)["llama"])
    logprobs = []
    configs = write_config(tmp_path, "MEASURE"), write_config(tmp_path, "QUANTIZE", scale_method="maxabs_pow2")
    for config in configs:
        with start(CompressedBackend(config), folder, "float32", max_slots=2) as running:
            replies = running.serve(make_asks(running)[:3])
            logprobs.append(torch.tensor([reply.logprobs[0] for reply in replies]))
    difference = (logprobs[0] - logprobs[1]).abs().max()
    assert 0 < difference < 0.3


def test_the_fake_management_library_has_the_real_one_s_signatures() -> None:
    sys.path.insert(0, str(FAKE_SDK))
    source = (FAKE_SDK / "pyhlml" / "__init__.py").read_text()
    fake: dict[str, Any] = {"__name__": "pyhlml"}
    exec(compile(source, "pyhlml", "exec"), fake)
    sys.path.remove(str(FAKE_SDK))
    names = [name for name in fake if name.startswith("hlml")]
    assert len(names) == 6
    for name in names:
        real = list(inspect.signature(getattr(pyhlml, name)).parameters)
        assert list(inspect.signature(fake[name]).parameters) == real, name
    with pytest.raises(pyhlml.HLMLError):
        pyhlml.hlmlInit()
