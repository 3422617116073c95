"""Linears in 8 bits, and how they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from tgi_core.contract import Device, Kernels, ModelShard, ShardSpec
from tgi_core.contract.kernels import PackedWeight
from tgi_core.errors import StartupError
from tgi_core.reference.padded import PaddedKernels
from tgi_core.testing.conformance.models import model_configs, write_checkpoint
from tgi_core.testing.conformance.running import Ask, check_late_compiles, start
from tgi_core.testing.stand_ins.bucketed import BucketedCpuBackend
from tgi_gaudi.backend import GaudiBackend
from tgi_gaudi.linears import Fp8Linears

HPU = torch.device("hpu", 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_in_8_bits_are_close(card: Any, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    # Rows of very different sizes: a scale for all of them would lose the small ones.
    x_TK = (torch.randn(6, 64, generator=generator) * torch.tensor([[1e-3], [1.0], [300.0], [1.0], [0.0], [5.0]])).to(
        dtype
    )
    weight_NK = (torch.randn(32, 64, generator=generator) * torch.logspace(-3, 2, 32)[:, None]).to(dtype)
    bias_N = torch.randn(32, generator=generator).to(dtype)
    linears = Fp8Linears()
    packed = linears.pack(weight_NK.to(HPU))
    assert packed.weight_NK.dtype is torch.float8_e4m3fn
    for bias in (None, bias_N):
        expected_TN = torch.nn.functional.linear(x_TK, weight_NK, bias).float()
        actual_TN = linears.apply(x_TK.to(HPU), packed, None if bias is None else bias.to(HPU)).cpu().float()
        error_T = (actual_TN - expected_TN).norm(dim=-1) / expected_TN.norm(dim=-1).clamp(min=1e-6)
        assert error_T.max() < 0.08


def test_the_largest_number_is_the_card_s(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from habana_frameworks.torch.utils import experimental

    x_TK = torch.tensor([[1.0, -2.0]], device=HPU)
    packed = Fp8Linears().pack(x_TK)
    assert packed.weight_NK.cpu().float().abs().max() == 240.0
    monkeypatch.setattr(experimental, "_get_device_type", lambda: experimental.synDeviceType.synDeviceGaudi3)
    assert Fp8Linears().pack(x_TK).scales_N.item() == pytest.approx(2 / 448)


@pytest.fixture
def spec(tmp_path: Path) -> ShardSpec:
    write_checkpoint(tmp_path, model_configs(16)["llama"])
    return ShardSpec(model_dir=tmp_path, dtype="float32", options={"--gaudi-fp8": "dynamic"})


def test_one_way_to_8_bits_at_a_time(card: Any, spec: ShardSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANT_CONFIG", "quantize.json")
    with pytest.raises(StartupError, match="both are asked for"):
        GaudiBackend().create_shard(spec)


def test_a_configuration_that_cannot_be_used(card: Any, spec: ShardSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANT_CONFIG", "no-such-file.json")
    with pytest.raises(StartupError, match="cannot be used") as raised:
        GaudiBackend().create_shard(ShardSpec(model_dir=spec.model_dir, dtype="float32"))
    assert "neural-compressor-pt" in raised.value.fix


class In8Bits(GaudiBackend):
    """The backend as ``--gaudi-fp8 dynamic`` asks for it."""

    def create_shard(self, spec: ShardSpec) -> ModelShard:
        return super().create_shard(replace(spec, options={"--gaudi-fp8": "dynamic"}))


class QuantizedKernels(PaddedKernels):
    """The reference with linears whose operands were in 8 bits once."""

    def pack_linear(self, weight_NK: Tensor) -> PackedWeight:
        return through_8_bits(weight_NK)

    def linear(self, x_TK: Tensor, weight: PackedWeight, bias_N: Tensor | None) -> Tensor:
        return torch.nn.functional.linear(through_8_bits(x_TK), weight, bias_N)


def through_8_bits(x_RK: Tensor) -> Tensor:
    """Rows scaled to the range of Gaudi 2, rounded, and scaled back."""
    scales_R1 = x_RK.abs().amax(dim=-1, keepdim=True) / 240
    return (x_RK * scales_R1.reciprocal()).to(torch.float8_e4m3fn).float() * scales_R1


class QuantizedBackend(BucketedCpuBackend):
    """The stand-in with static shapes over these."""

    def kernels(self, device: Device) -> Kernels:
        return QuantizedKernels()


@pytest.mark.slow
def test_a_model_in_8_bits_is_one_whose_operands_were(card: Any, spec: ShardSpec) -> None:
    """A prompt's log-probabilities: rounding falls out differently here and there, and shifts them a little."""
    logprobs = []
    for backend in (In8Bits(), QuantizedBackend(), BucketedCpuBackend()):
        with start(backend, spec.model_dir, "float32", block_size=16, max_slots=2) as running:
            replies = running.serve([Ask(list(range(3, 60)), 1, prompt_logprobs=True)])
            check_late_compiles(running)
            logprobs.append(torch.tensor(replies[0].prompt_logprobs))
    actual, expected, exact = logprobs
    assert len(actual) == 56
    assert (actual - expected).abs().mean() < 0.1 * (actual - exact).abs().mean()
