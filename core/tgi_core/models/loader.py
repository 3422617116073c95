"""Brings a model's weights onto the device: reads, checks, merges and packs them, one layer after the other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.contract.kernels import Kernels, PackedWeight
from tgi_core.contract.shard import LoadProgress
from tgi_core.errors import ExitCode, StartupError
from tgi_core.models.decoder import DecoderWeights, LayerWeights
from tgi_core.models.spec import Architecture, ArchitectureSpec, WeightNames

_MISMATCH = "Check that config.json belongs to these weights."


class Checkpoint(Protocol):
    """What the loader needs of an opened checkpoint."""

    @property
    def names(self) -> Collection[str]:
        """Every tensor's name."""

    @property
    def total_bytes(self) -> int:
        """Data of all tensors, as stored."""

    def tensor(self, name: str) -> Tensor:
        """One tensor, on the CPU, in the checkpoint's dtype."""


class WeightSource(Protocol):
    """Where weights come from, by the names that ``WeightNames`` gives them."""

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor on the device in the model's dtype."""

    def drop(self, name: str) -> None:
        """A tensor that may be there and is not needed."""

    def finish(self) -> None:
        """All weights of the model have been taken."""


class CheckpointSource:
    """Reads a checkpoint and knows which tensors nobody asked for."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        architecture: Architecture,
        dtype: torch.dtype,
        device: torch.device,
        progress: LoadProgress,
    ) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._loaded_bytes = 0
        self._unused = {
            _canonical(name, architecture): name
            for name in checkpoint.names
            if not name.startswith(architecture.ignored or ("\0",)) and not name.endswith("rotary_emb.inv_freq")
        }

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read one tensor.

        Raises:
            StartupError: it is missing or has another shape.
        """
        if name not in self._unused:
            raise StartupError(f"The checkpoint has no tensor `{name}`.", _MISMATCH, ExitCode.MODEL)
        tensor = self._checkpoint.tensor(self._unused.pop(name))
        if tuple(tensor.shape) != shape:
            raise StartupError(
                f"Tensor `{name}` has shape {list(tensor.shape)}, config.json asks for {list(shape)}.",
                _MISMATCH,
                ExitCode.MODEL,
            )
        self._loaded_bytes += tensor.nbytes
        self._progress(self._loaded_bytes, self._checkpoint.total_bytes)
        return tensor.to(self._device, self._dtype)

    def drop(self, name: str) -> None:
        """A tensor that may be there and is not needed."""
        self._unused.pop(name, None)

    def finish(self) -> None:
        """Refuse a checkpoint that holds more than the model uses.

        Raises:
            StartupError: tensors are left.
        """
        if self._unused:
            left = sorted(self._unused.values())
            raise StartupError(
                f"The checkpoint has {len(left)} tensors that the model does not use: {', '.join(left[:5])}.",
                _MISMATCH,
                ExitCode.MODEL,
            )
        self._progress(self._checkpoint.total_bytes, self._checkpoint.total_bytes)


class RandomSource:
    """Random weights for benchmarks, scaled so that activations keep their size from layer to layer."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator(device).manual_seed(0)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A uniform matrix of variance 1 / inputs, or a vector of zeros for a bias and ones for a norm."""
        if len(shape) == 1:
            fill = 0.0 if name.endswith(".bias") else 1.0
            return torch.full(shape, fill, dtype=self._dtype, device=self._device)
        bound = (3 / shape[1]) ** 0.5
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        return tensor.uniform_(-bound, bound, generator=self._generator)

    def drop(self, name: str) -> None:
        """Nothing is there that could be left over."""

    def finish(self) -> None:
        """Nothing can be left over."""


def load_decoder_weights(
    spec: ArchitectureSpec, names: WeightNames, source: WeightSource, kernels: Kernels
) -> DecoderWeights:
    """Take every weight of the model and pack the linears.

    A merged weight is made, packed and its parts dropped before the next is read: no more than one of them is held
    twice.

    Raises:
        StartupError: tensors are missing, left over or of the wrong shape.
    """
    builder = _Builder(spec, names, source, kernels)
    embedding_VE = builder.take(f"{names.embedding}.weight", (spec.vocab_size, spec.hidden_size))
    layers = tuple(builder.layer(index) for index in range(len(spec.layers)))
    final_norm_E = builder.take(f"{names.final_norm}.weight", (spec.hidden_size,))
    if spec.tied_head:
        source.drop(f"{names.head}.weight")
        head = kernels.pack_linear(embedding_VE)
        # A device that packs has the table a second time, in the form its linears want.
        builder.size_bytes += 0 if head is embedding_VE else embedding_VE.nbytes
    else:
        head = builder.linear((names.head,), (spec.vocab_size,), spec.hidden_size)
    source.finish()
    return DecoderWeights(embedding_VE, layers, final_norm_E, head, builder.size_bytes)


class _Builder:
    """Builds layers out of a source and counts their bytes."""

    def __init__(self, spec: ArchitectureSpec, names: WeightNames, source: WeightSource, kernels: Kernels) -> None:
        self._spec = spec
        self._names = names
        self._source = source
        self._kernels = kernels
        self.size_bytes = 0

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor, counted."""
        tensor = self._source.take(name, shape)
        self.size_bytes += tensor.nbytes
        return tensor

    def layer(self, index: int) -> LayerWeights:
        """Layer ``index``."""
        spec, names = self._spec, self._names
        hidden, inner = spec.hidden_size, spec.intermediate_size
        q_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        qkv = tuple(name.format(index) for name in names.qkv)
        gate_up = tuple(name.format(index) for name in names.gate_up)
        o, down = names.o.format(index), names.down.format(index)
        return LayerWeights(
            attention_norm_E=self._norm(names.attention_norm, index),
            qkv=self.linear(qkv, (q_rows, kv_rows, kv_rows), hidden),
            qkv_bias=self._bias(qkv, (q_rows, kv_rows, kv_rows)) if spec.qkv_bias else None,
            q_norm_D=self._norm(names.q_norm, index, spec.head_dim) if spec.qk_norm else None,
            k_norm_D=self._norm(names.k_norm, index, spec.head_dim) if spec.qk_norm else None,
            o=self.linear((o,), (hidden,), q_rows),
            o_bias=self._bias((o,), (hidden,)) if spec.o_bias else None,
            attention_out_norm_E=self._norm(names.attention_out_norm, index) if spec.sandwich_norms else None,
            mlp_norm_E=self._norm(names.mlp_norm, index),
            gate_up=self.linear(gate_up, (inner, inner), hidden),
            gate_up_bias=self._bias(gate_up, (inner, inner)) if spec.mlp_bias else None,
            down=self.linear((down,), (hidden,), inner),
            down_bias=self._bias((down,), (hidden,)) if spec.mlp_bias else None,
            mlp_out_norm_E=self._norm(names.mlp_out_norm, index) if spec.sandwich_norms else None,
        )

    def linear(self, names: Sequence[str], rows: Sequence[int], inputs: int) -> PackedWeight:
        """The packed weight whose parts, of ``rows`` rows each, the checkpoint keeps under ``names``."""
        return self._kernels.pack_linear(self._joined(names, ".weight", rows, (inputs,)))

    def _bias(self, names: Sequence[str], rows: Sequence[int]) -> Tensor:
        return self._joined(names, ".bias", rows, ())

    def _joined(self, names: Sequence[str], suffix: str, rows: Sequence[int], rest: tuple[int, ...]) -> Tensor:
        # One name for several parts is a checkpoint that stores them merged.
        sizes = rows if len(names) == len(rows) else (sum(rows),)
        parts = [self.take(name + suffix, (size, *rest)) for name, size in zip(names, sizes, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _norm(self, name: str, index: int, size: int | None = None) -> Tensor:
        return self.take(f"{name.format(index)}.weight", (size or self._spec.hidden_size,))


def _canonical(name: str, architecture: Architecture) -> str:
    for prefix, replacement in architecture.renames:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name
