"""A model folder with random weights under the names of its architecture, made without transformers."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tgi_core.models.hf_config import HFConfig
from tgi_core.models.model import LoadOptions
from tgi_core.models.own import open_own
from tgi_core.models.sources import RandomSource
from tgi_core.reference import ReferenceKernels

_HOST = torch.device("cpu")


class _Recorder(RandomSource):
    """Hands out random weights and keeps what it was asked for."""

    def __init__(self) -> None:
        super().__init__(torch.float32, _HOST)
        self.taken: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:  # noqa: ARG002
        self.taken[name] = _random(name, shape)
        return self.taken[name].float()

    def slices(self, name: str, shape: tuple[int, ...]) -> Iterator[Tensor]:
        yield from self.take(name, shape)


def write_checkpoint(folder: Path, config: Mapping[str, Any]) -> None:
    """Write ``config.json`` and ``model.safetensors`` in bfloat16, so that every type reads the same numbers.

    Biases and norms are random too: models are made with zeros and ones there, where a mistake would not show.

    Raises:
        StartupError: no architecture knows the configuration.
    """
    (folder / "config.json").write_text(json.dumps(dict(config)))
    model, recorder, kernels = open_own(folder, HFConfig.read(folder)), _Recorder(), ReferenceKernels()
    options = LoadOptions(
        load_format="auto",
        dtype=torch.float32,
        device=_HOST,
        kernels=kernels,
        attention_kernels=[kernels] * len(model.attention),
        progress=_ignore_progress,
        source=recorder,
    )
    model.load(options)
    save_file(recorder.taken, folder / "model.safetensors")


def _ignore_progress(done_bytes: int, total_bytes: int) -> None:
    """Nothing is read."""


def _random(name: str, shape: tuple[int, ...]) -> Tensor:
    """By the name alone, whatever the order in which weights are taken."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    if len(shape) == 1:
        mean = 0.0 if name.endswith(("bias", "sinks")) else 1.0
        numbers = torch.randn(shape, generator=generator) * 0.2 + mean
    else:
        numbers = torch.randn(shape, generator=generator) * (2 / shape[-1]) ** 0.5
    return numbers.bfloat16()
