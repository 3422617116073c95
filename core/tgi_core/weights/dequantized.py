"""A checkpoint of quantized weights as one of plain weights: scales disappear, weights come out dequantized."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tgi_core.errors import ExitCode, StartupError
from tgi_core.weights.dequantize import MXFP4_BLOCK, MXFP4_BLOCK_BYTES, Dequantizer

if TYPE_CHECKING:
    import torch

    from tgi_core.weights.checkpoint import Checkpoint

_FP8 = ("F8_E4M3", "F8_E5M2")
_SCALE_DTYPES = ("F32", "BF16", "F16", "F8_E8M0")
_SCALES = ("_scale_inv", "_scale")
"""What the name of a scale adds to its weight's; both are multiplied with it."""

_ACTIVATION_SCALES = ("input_scale", "activation_scale", ".q_scale", ".k_scale", ".v_scale", ".kv_scale")
"""Ends of names of scales for what is not quantized here: inputs of linears, the KV cache."""

_GIB = 1 << 30

_FIX = "Check that config.json belongs to these weights, or serve a version of the model that is not quantized."


class Fp8(msgspec.Struct, frozen=True):
    """Weights in 8-bit floats.

    Attributes:
        block: rows and columns that share a scale; None for one scale a tensor or a row.
    """

    block: tuple[int, int] | None

    def __str__(self) -> str:
        return "fp8"


class Mxfp4(msgspec.Struct, frozen=True):
    """Weights in blocks of 4-bit floats (E2M1) with a scale each, [X, N, K], of matrices that are used transposed."""

    def __str__(self) -> str:
        return "mxfp4"


Quantization = Fp8 | Mxfp4


class _Weight(NamedTuple):
    """A quantized weight: the names it is stored under and the shape that comes out."""

    values: str
    scale: str
    shape: tuple[int, ...]


class DequantizedCheckpoint:
    """The tensors of ``stored``, those that are quantized in ``dtype``.

    Attributes:
        names: every tensor's name, without scales.
        total_bytes: data of all tensors as they come out.
        notes: what a user should know: how much memory this takes.

    Raises:
        StartupError: a scale is missing, of another shape or of another type.
    """

    def __init__(self, stored: Checkpoint, quantization: Quantization, dtype: torch.dtype) -> None:
        self._stored = stored
        self._block = quantization.block if isinstance(quantization, Fp8) else None
        self._dequantizer = Dequantizer(dtype)
        self._weights = self._find_fp8() if isinstance(quantization, Fp8) else self._find_mxfp4()
        hidden = {name for weight in self._weights.values() for name in (weight.values, weight.scale)}
        hidden |= {name for name in stored.names if name.endswith(_ACTIVATION_SCALES)}
        self.names = (stored.names - hidden) | self._weights.keys()
        weights_bytes = sum(math.prod(weight.shape) for weight in self._weights.values()) * dtype.itemsize
        stored_bytes = sum(stored.size_bytes(name) for weight in self._weights.values() for name in weight[:2])
        self.total_bytes = weights_bytes + sum(stored.size_bytes(name) for name in self.names - self._weights.keys())
        self.notes = (
            f"{quantization} weights are dequantized to {str(dtype).removeprefix('torch.')}: "
            f"{weights_bytes / _GIB:.2f} GiB of memory in place of {stored_bytes / _GIB:.2f} GiB",
        )

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor called ``name``, on the CPU; in the dtype asked for if it is stored quantized.

        Raises:
            StartupError: there is no such tensor, or it cannot be read.
        """
        weight = self._weights.get(name)
        if weight is None:
            return self._stored.tensor(name)
        return self._dequantize(self._stored.tensor(weight.values), self._stored.tensor(weight.scale))

    def slices(self, name: str) -> Iterator[torch.Tensor]:
        """The parts of the tensor called ``name`` along its first axis, of which one is dequantized at a time.

        Raises:
            StartupError: there is no such tensor, or it cannot be read.
        """
        weight = self._weights.get(name)
        if weight is None:
            yield from self._stored.tensor(name)
            return
        values, scale = self._stored.tensor(weight.values), self._stored.tensor(weight.scale)
        for index in range(len(values)):
            yield self._dequantize(values[index], scale if scale.numel() == 1 else scale[index])

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the tensor called ``name`` as it comes out.

        Raises:
            StartupError: there is no such tensor.
        """
        weight = self._weights.get(name)
        return self._stored.shape(name) if weight is None else weight.shape

    def file_name(self, name: str) -> str:
        """The name of the file that holds the tensor called ``name``.

        Raises:
            StartupError: there is no such tensor.
        """
        weight = self._weights.get(name)
        return self._stored.file_name(name if weight is None else weight.values)

    def _dequantize(self, values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        import torch

        if values.dtype is torch.uint8:
            return self._dequantizer.mxfp4(values, scale).transpose(-1, -2)
        if self._block is None:
            scale = scale.reshape(*scale.shape, *[1] * (values.dim() - scale.dim()))
        return self._dequantizer.fp8(values, scale, self._block)

    def _find_fp8(self) -> dict[str, _Weight]:
        stored = self._stored
        found = {}
        for name in stored.names:
            if stored.dtype(name) not in _FP8:
                continue
            shape = stored.shape(name)
            scale = next((name + end for end in _SCALES if name + end in stored.names), None)
            if len(shape) < 2:
                raise self._refuse(f"Tensor `{name}` in {stored.file_name(name)} has 8-bit floats, but one axis")
            if scale is None:
                raise self._refuse(
                    f"Tensor `{name}` in {stored.file_name(name)} has 8-bit floats of shape {list(shape)}, "
                    f"but the checkpoint has no `{name}{_SCALES[0]}` or `{name}{_SCALES[1]}`"
                )
            self._check_scale(scale, _SCALE_DTYPES, _scale_shapes(shape, self._block))
            found[name] = _Weight(name, scale, shape)
        return found

    def _find_mxfp4(self) -> dict[str, _Weight]:
        stored = self._stored
        found = {}
        for values in stored.names:
            if not values.endswith("_blocks"):
                continue
            name = values.removesuffix("_blocks")
            shape = stored.shape(values)
            if len(shape) < 3 or shape[-1] != MXFP4_BLOCK_BYTES or stored.dtype(values) != "U8":
                raise self._refuse(
                    f"Tensor `{values}` in {stored.file_name(values)} has type {stored.dtype(values)} and shape "
                    f"{list(shape)}; expected is U8 and [..., {MXFP4_BLOCK_BYTES}]"
                )
            scale = f"{name}_scales"
            if scale not in stored.names:
                raise self._refuse(
                    f"Tensor `{values}` is in {stored.file_name(values)}, but the checkpoint has no `{scale}`, "
                    f"which should have shape {list(shape[:-1])}"
                )
            self._check_scale(scale, ("U8",), [shape[:-1]])
            *leading, rows, groups, _ = shape
            found[name] = _Weight(values, scale, (*leading, groups * MXFP4_BLOCK, rows))
        return found

    def _check_scale(self, name: str, dtypes: tuple[str, ...], shapes: list[tuple[int, ...]]) -> None:
        stored = self._stored
        shape, dtype = stored.shape(name), stored.dtype(name)
        if shape not in shapes or dtype not in dtypes:
            expected = " or ".join(str(list(each)) for each in shapes)
            raise self._refuse(
                f"Tensor `{name}` in {stored.file_name(name)} has type {dtype} and shape {list(shape)}; expected is "
                f"{' or '.join(dtypes)} and {expected}"
            )

    def _refuse(self, cause: str) -> StartupError:
        return StartupError(f"{cause}.", _FIX, ExitCode.MODEL)


def _scale_shapes(shape: tuple[int, ...], block: tuple[int, int] | None) -> list[tuple[int, ...]]:
    """The shapes that the scale of a weight [..., N, K] may have."""
    *leading, rows, columns = shape
    if block is not None:
        return [(*leading, -(-rows // block[0]), -(-columns // block[1]))]
    each = [(*leading, 1, 1), (*leading, rows, 1), (*leading, 1, columns), (*leading, rows), tuple(leading)]
    return list(dict.fromkeys([(), (1,), *each]))
