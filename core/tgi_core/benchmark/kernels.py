"""Measures a backend's operations one by one, with the shapes of a model and against the device's own ceilings."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from tgi_core.benchmark.figures import Ceilings, KernelFigure, StepFigure, kernel_figure, step_figure
from tgi_core.benchmark.operations import Operation, StepOperations
from tgi_core.benchmark.timing import Stopwatch
from tgi_core.contract import Backend, GraphMode, ShapeMode
from tgi_core.engine.attention import AUTO, choose_attention
from tgi_core.errors import ExitCode, StartupError
from tgi_core.models.architecture import find_decoder
from tgi_core.models.decoder import attention_specs
from tgi_core.models.hf_config import HFConfig
from tgi_core.shards.binding import bind_attention

_ROTATED_BYTES = 256 << 20
"""Buffers in turn hold at least so much, several times a device's cache: each run reads what was not read lately."""

_MOST_BUFFERS = 64
_COPY_BYTES = 128 << 20
_MOST_COPY_BYTES = 1 << 30
_SMALLEST_PRODUCT, _LARGEST_PRODUCT = 512, 8192
_LONG_S = 2.5e-4
"""A copy or product that takes so long is a large one for this device."""


class KernelBenchmark:
    """One backend's operations for one model.

    Args:
        backend: whose operations.
        model_dir: a folder with the model's config.json.
        dtype: of weights and activations, one of the backend's.
        attention: name of the implementation of attention, or "auto".

    Attributes:
        attention: the implementation that is measured.
        ceilings: measured at once.
        notes: what a user should know, such as operations that run on the reference.

    Raises:
        StartupError: the model is of no known architecture, the backend brings its own model, or its attention cannot
            be what was asked for.
    """

    @torch.inference_mode()
    def __init__(self, backend: Backend, model_dir: Path, dtype: str, attention: str = AUTO) -> None:
        capabilities = backend.capabilities()
        if capabilities.shape_mode is ShapeMode.WHOLE_MODEL:
            raise StartupError(
                f"Backend `{backend.info.name}` owns whole models: it has no operations to measure.",
                "Use bench engine, or another backend.",
                ExitCode.BACKEND,
            )
        config = HFConfig.read(model_dir)
        spec = find_decoder(config).build(config)
        block_size = capabilities.block_sizes[0]
        choice = choose_attention(backend, attention, model_dir, dtype, block_size)
        device = backend.open_device(0)
        kernels = backend.kernels_for(device, choice)
        self._device = device.torch_device
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._stopwatch = Stopwatch(device, graphs=capabilities.graph is not GraphMode.NONE)
        bound = bind_attention(kernels, attention_specs(spec))
        self.attention = choice.name
        self.notes = [*kernels.notes, *bound.notes]
        self._operations = StepOperations(
            spec,
            kernels,
            bound.kernels,
            device=self._device,
            dtype=self._dtype,
            block_size=block_size,
        )
        self.ceilings = Ceilings(copy_tb_per_s=self._copy_tb_per_s(), matrix_tflop_per_s=self._matrix_tflop_per_s())

    @torch.inference_mode()
    def decode(self, rows: int, context: int) -> StepFigure:
        """A step of ``rows`` decodes with ``context`` tokens in the cache of each."""
        return step_figure("decode", rows, context, self._measure(self._operations.decode(rows, context)))

    @torch.inference_mode()
    def prefill(self, tokens: int) -> StepFigure:
        """A step that computes one prompt of ``tokens`` tokens."""
        return step_figure("prefill", 1, tokens, self._measure(self._operations.prefill(tokens)))

    def _measure(self, operations: Iterable[Operation]) -> list[KernelFigure]:
        return [self._figure(operation) for operation in operations]

    def _figure(self, operation: Operation) -> KernelFigure:
        buffers = max(1, min(_MOST_BUFFERS, -(-_ROTATED_BYTES // operation.moved_bytes)))
        launches = [operation.make() for _ in range(buffers)]
        return kernel_figure(
            operation=operation.name,
            kind=operation.kind,
            launches=operation.launches,
            time_s=self._stopwatch.seconds(launches, captures=operation.captures),
            moved_bytes=operation.moved_bytes,
            flops=operation.flops,
            ceilings=self.ceilings,
        )

    def _copy_tb_per_s(self) -> float:
        best, size_bytes, seconds = 0.0, _COPY_BYTES, 0.0
        while seconds < _LONG_S and size_bytes <= _MOST_COPY_BYTES:
            source = torch.ones(size_bytes // 4, dtype=torch.float32, device=self._device)
            target = torch.empty_like(source)
            # Of a copy engine and the arithmetic units one or the other is faster.
            for work in (partial(target.copy_, source), partial(torch.neg, source, out=target)):
                seconds = self._stopwatch.seconds([work])
                best = max(best, 2 * size_bytes / seconds / 1e12)
            size_bytes *= 2
        return best

    def _matrix_tflop_per_s(self) -> float:
        best, size, seconds = 0.0, _SMALLEST_PRODUCT, 0.0
        while seconds < _LONG_S and size <= _LARGEST_PRODUCT:
            left, right = (
                torch.empty((size, size), dtype=self._dtype, device=self._device).uniform_(-1, 1) for _ in range(2)
            )
            seconds = self._stopwatch.seconds([partial(F.linear, left, right)])
            best = max(best, 2 * size**3 / seconds / 1e12)
            size *= 2
        return best
