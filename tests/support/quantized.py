"""Quantized checkpoints and what they stand for, spelled with loops and tables of their own."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the three lower bits of a 4-bit float stand for; the fourth is the sign."""


def e4m3(byte: int) -> float:
    """The number that a byte stands for: a sign, four bits of exponent with a bias of 7, three of fraction."""
    sign, exponent, fraction = (-1) ** (byte >> 7), byte >> 3 & 15, byte & 7
    if exponent == 15 and fraction == 7:
        return math.nan
    return sign * (fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7))


def random_e4m3(*shape: int, seed: int = 0) -> Tensor:
    """Any 8-bit floats but NaN."""
    generator = torch.Generator().manual_seed(seed)
    bytes_ = torch.randint(0, 256, shape, generator=generator, dtype=torch.int64)
    return torch.where(bytes_ % 128 == 127, bytes_ - 1, bytes_).to(torch.uint8).view(torch.float8_e4m3fn)


def spread_scale(scale: Tensor, block: tuple[int, int], shape: tuple[int, int]) -> Tensor:
    """The scale of every number of a matrix."""
    rows, columns = shape
    return scale[torch.arange(rows) // block[0]][:, torch.arange(columns) // block[1]]


def quantize_blocks(weight: Tensor, block: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """8-bit floats and scales; the largest number of each block becomes 448."""
    rows, columns = weight.shape
    scale = torch.zeros(-(-rows // block[0]), -(-columns // block[1]))
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            part = weight[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
            scale[i, j] = part.abs().max() / 448
    return (weight / spread_scale(scale, block, (rows, columns))).to(torch.float8_e4m3fn), scale


def quantize_mxfp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks [..., G, 16] and scales [..., G] of numbers [..., G * 32]."""
    groups = weight.unflatten(-1, (-1, 32))
    exponent = (groups.abs().amax(dim=-1) / 6).log2().ceil().clamp(-127, 127)
    scaled = groups / torch.exp2(exponent)[..., None]
    code = (scaled.abs()[..., None] - torch.tensor(E2M1)).abs().argmin(dim=-1) + 8 * (scaled < 0)
    return (code[..., ::2] + 16 * code[..., 1::2]).to(torch.uint8), (exponent + 127).to(torch.uint8)


def mxfp4_numbers(blocks: Tensor, scales: Tensor) -> Tensor:
    """What they stand for, one number after the other."""
    signed = [*E2M1, *(-value for value in E2M1)]
    numbers = [
        signed[half] * 2.0 ** (scale - 127)
        for block, scale in zip(blocks.reshape(-1, 16).tolist(), scales.flatten().tolist(), strict=True)
        for byte in block
        for half in (byte & 15, byte >> 4)
    ]
    return torch.tensor(numbers).view(*scales.shape[:-1], scales.shape[-1] * 32)


def rewrite(source: Path, target: Path, change: Callable[[str, Tensor], Mapping[str, Tensor]], **config: Any) -> Path:
    """A copy of a model in which every tensor becomes what ``change`` makes of it."""
    target.mkdir()
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        tensors |= {key: value.contiguous() for key, value in change(name, tensor).items()}
    save_file(tensors, target / "model.safetensors")
    values = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(values | config))
    return target
