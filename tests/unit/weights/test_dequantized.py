"""Checkpoints of quantized weights, read as plain ones, and those that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.quantized import mxfp4_numbers, random_e4m3, spread_scale
from tgi_core.errors import ExitCode, StartupError
from tgi_core.weights.checkpoint import Checkpoint
from tgi_core.weights.dequantized import DequantizedCheckpoint, Fp8, Mxfp4, Quantization

BLOCKS = Fp8((32, 40))
WHOLE = Fp8(None)
LINEAR = "layers.0.up_proj.weight"
EXPERTS = "layers.0.experts.up"


def opened(
    folder: Path, tensors: dict[str, Tensor], quantization: Quantization, dtype: torch.dtype = torch.float32
) -> DequantizedCheckpoint:
    save_file(tensors, folder / "model.safetensors")
    return DequantizedCheckpoint(Checkpoint.open(folder), quantization, dtype)


def fp8_linear() -> dict[str, Tensor]:
    return {LINEAR: random_e4m3(70, 90), f"{LINEAR}_scale_inv": torch.rand(3, 3) + 0.1}


def mxfp4_experts() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        f"{EXPERTS}_blocks": torch.randint(0, 256, (3, 10, 2, 16), generator=generator, dtype=torch.uint8),
        f"{EXPERTS}_scales": torch.randint(120, 130, (3, 10, 2), generator=generator, dtype=torch.uint8),
    }


def test_blocks(tmp_path: Path) -> None:
    stored = fp8_linear()
    checkpoint = opened(tmp_path, stored, BLOCKS, torch.bfloat16)
    expected = stored[LINEAR].float() * spread_scale(stored[f"{LINEAR}_scale_inv"], (32, 40), (70, 90))
    assert checkpoint.names == {LINEAR}
    assert torch.equal(checkpoint.tensor(LINEAR), expected.bfloat16())
    assert checkpoint.shape(LINEAR) == (70, 90)
    assert checkpoint.file_name(LINEAR) == "model.safetensors"


@pytest.mark.parametrize("scale_shape", [(), (1,), (70,), (70, 1)])
def test_scales_of_tensors_and_rows(scale_shape: tuple[int, ...], tmp_path: Path) -> None:
    weight, scale = random_e4m3(70, 90), torch.rand(scale_shape).bfloat16()
    checkpoint = opened(tmp_path, {LINEAR: weight, f"{LINEAR}_scale": scale}, WHOLE)
    spread = scale.float()[:, None] if scale_shape == (70,) else scale.float()
    assert torch.equal(checkpoint.tensor(LINEAR), weight.float() * spread)


@pytest.mark.parametrize("scale_shape", [(3,), (3, 1, 1), (3, 20), (3, 1, 30), (1,)])
def test_stacked_experts(scale_shape: tuple[int, ...], tmp_path: Path) -> None:
    """Named without ``.weight``, as llama4's; scales of experts, rows or columns; whole and one at a time."""
    weight, scale = random_e4m3(3, 20, 30), torch.rand(scale_shape)
    checkpoint = opened(tmp_path, {EXPERTS: weight, f"{EXPERTS}_scale": scale}, WHOLE)
    expected = weight.float() * scale.view(*scale_shape, *[1] * (3 - len(scale_shape)))
    assert torch.equal(checkpoint.tensor(EXPERTS), expected)
    assert torch.equal(torch.stack(list(checkpoint.slices(EXPERTS))), expected)


def test_stacked_experts_in_blocks(tmp_path: Path) -> None:
    weight, scale = random_e4m3(3, 70, 90), torch.rand(3, 3, 3)
    checkpoint = opened(tmp_path, {EXPERTS: weight, f"{EXPERTS}_scale_inv": scale}, BLOCKS)
    expected = torch.stack([weight[x].float() * spread_scale(scale[x], (32, 40), (70, 90)) for x in range(3)])
    assert torch.equal(checkpoint.tensor(EXPERTS), expected)
    assert torch.equal(torch.stack(list(checkpoint.slices(EXPERTS))), expected)


def test_mxfp4_comes_out_transposed(tmp_path: Path) -> None:
    stored = mxfp4_experts()
    checkpoint = opened(tmp_path, stored, Mxfp4())
    expected = mxfp4_numbers(stored[f"{EXPERTS}_blocks"], stored[f"{EXPERTS}_scales"]).transpose(1, 2)
    assert checkpoint.names == {EXPERTS}
    assert checkpoint.shape(EXPERTS) == (3, 64, 10)
    assert torch.equal(checkpoint.tensor(EXPERTS), expected)
    assert torch.equal(torch.stack(list(checkpoint.slices(EXPERTS))), expected)


@pytest.mark.parametrize(("quantization", "make"), [(BLOCKS, fp8_linear), (Mxfp4(), mxfp4_experts)])
def test_what_is_not_quantized_stays(
    quantization: Quantization, make: Callable[[], dict[str, Tensor]], tmp_path: Path
) -> None:
    head = torch.randn(8, 8).half()
    checkpoint = opened(tmp_path, {**make(), "lm_head.weight": head}, quantization, torch.bfloat16)
    assert torch.equal(checkpoint.tensor("lm_head.weight"), head)
    assert list(map(torch.Tensor.tolist, checkpoint.slices("lm_head.weight"))) == head.tolist()
    assert checkpoint.shape("lm_head.weight") == (8, 8)


def test_scales_of_inputs_and_of_the_cache_disappear(tmp_path: Path) -> None:
    others = ("layers.0.up_proj.input_scale", "layers.0.attn.k_scale", "layers.0.attn.v_scale")
    checkpoint = opened(tmp_path, {**fp8_linear(), **{name: torch.ones(1) for name in others}}, BLOCKS)
    assert checkpoint.names == {LINEAR}


def test_sizes_and_what_is_told(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, {**fp8_linear(), "norm.weight": torch.ones(5)}, BLOCKS, torch.bfloat16)
    assert checkpoint.total_bytes == 2 * 70 * 90 + 4 * 5
    weight = torch.zeros(8192, 4096, dtype=torch.float8_e4m3fn)
    (note,) = opened(tmp_path, {LINEAR: weight, f"{LINEAR}_scale": torch.ones(1)}, WHOLE, torch.bfloat16).notes
    assert note == "fp8 weights are dequantized to bfloat16: 0.06 GiB of memory in place of 0.03 GiB"


@pytest.mark.parametrize(
    ("quantization", "change", "told"),
    [
        (BLOCKS, {f"{LINEAR}_scale_inv": None}, (f"no `{LINEAR}_scale_inv`", "[70, 90]")),
        (BLOCKS, {f"{LINEAR}_scale_inv": torch.ones(3, 2)}, ("[3, 2]", "[3, 3]", f"`{LINEAR}_scale_inv`")),
        (BLOCKS, {f"{LINEAR}_scale_inv": torch.ones(1)}, ("[1]", "[3, 3]")),
        (BLOCKS, {f"{LINEAR}_scale_inv": torch.ones(3, 3, dtype=torch.int32)}, ("I32", "F32")),
        (WHOLE, {f"{LINEAR}_scale_inv": torch.ones(69, 1)}, ("[69, 1]", "[70, 1]")),
        (WHOLE, {}, ("[3, 3]", "[70, 1]")),
        (BLOCKS, {LINEAR: random_e4m3(70)}, (LINEAR, "one axis")),
    ],
)
def test_refused_fp8(
    quantization: Quantization, change: dict[str, Tensor | None], told: tuple[str, ...], tmp_path: Path
) -> None:
    assert_refused(tmp_path, fp8_linear() | change, quantization, told)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({f"{EXPERTS}_scales": None}, (f"no `{EXPERTS}_scales`", "[3, 10, 2]")),
        ({f"{EXPERTS}_scales": torch.ones(3, 10, 1, dtype=torch.uint8)}, ("[3, 10, 1]", "[3, 10, 2]")),
        ({f"{EXPERTS}_scales": torch.ones(3, 10, 2)}, ("F32", "U8")),
        ({f"{EXPERTS}_blocks": torch.ones(3, 10, 2, 8, dtype=torch.uint8)}, ("[3, 10, 2, 8]", "16")),
        ({f"{EXPERTS}_blocks": torch.ones(3, 10, 2, 16)}, ("F32", "U8")),
    ],
)
def test_refused_mxfp4(change: dict[str, Tensor | None], told: tuple[str, ...], tmp_path: Path) -> None:
    assert_refused(tmp_path, mxfp4_experts() | change, Mxfp4(), told)


def assert_refused(
    folder: Path, tensors: dict[str, Tensor | None], quantization: Quantization, told: tuple[str, ...]
) -> None:
    with pytest.raises(StartupError) as caught:
        opened(folder, {name: tensor for name, tensor in tensors.items() if tensor is not None}, quantization)
    assert caught.value.exit_code is ExitCode.MODEL
    for part in (*told, "model.safetensors"):
        assert part in caught.value.cause
