"""Takes weights out of a source and brings them into the form that kernels want, counting what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tgi_core.contract.kernels import WHOLE, Division, Kernels
from tgi_core.models.linear import Linear, NormWeights
from tgi_core.models.sources import WeightSource
from tgi_core.models.spec import Norm
from tgi_core.weights.joining import join_rows


class WeightBuilder:
    """Builds linears and norms.

    A merged weight is made, packed and its parts dropped before the next is read: no more than one of them is held
    twice.

    Attributes:
        source: where tensors come from.
        kernels: pack the linears.
        size_bytes: memory of what was built.
    """

    def __init__(self, source: WeightSource, kernels: Kernels) -> None:
        self.source = source
        self.kernels = kernels
        self.size_bytes = 0

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """One tensor, counted; in the model's dtype unless another is asked for.

        Raises:
            StartupError: it is missing or of another shape.
        """
        tensor = self.source.take(name, shape, dtype)
        self.size_bytes += tensor.nbytes
        return tensor

    def slices(self, name: str, shape: tuple[int, ...]) -> Iterator[Tensor]:
        """The parts of one tensor along its first axis, counted; no more than one of them is made at a time.

        Raises:
            StartupError: it is missing or of another shape.
        """
        for part in self.source.slices(name, shape):
            self.size_bytes += part.nbytes
            yield part

    def linear(
        self,
        names: Sequence[str],
        rows: Sequence[int],
        inputs: int,
        *,
        bias: bool,
        transposed: bool = False,
        division: Division = WHOLE,
    ) -> Linear:
        """A linear whose parts, of ``rows`` rows each, the checkpoint keeps under ``names``."""
        weight = self.kernels.pack_divided(self.weight(names, rows, inputs, transposed=transposed), division)
        return Linear(weight, self.joined(names, ".bias", rows) if bias else None)

    def head(self, name: str, embedding_VE: Tensor, *, tied: bool) -> Tensor:
        """The head's weight [V, E]: the embedding table itself if the two are ``tied`` and no other is stored.

        A checkpoint with another head was trained with it, whatever its configuration kept of a tied base model.

        Raises:
            StartupError: it is missing or of another shape.
        """
        if tied and not self.source.has(name):
            return embedding_VE
        weight_VE = self.source.take(name, tuple(embedding_VE.shape))
        if tied and torch.equal(weight_VE, embedding_VE):
            return embedding_VE
        self.size_bytes += weight_VE.nbytes
        return weight_VE

    def norm(self, name: str, size: int, kind: Norm) -> NormWeights:
        """A norm over ``size`` features."""
        if kind is Norm.LAYER_PLAIN:
            return NormWeights(self.source.ones((size,)))
        weight = self.take(f"{name}.weight", (size,))
        return NormWeights(weight, self.take(f"{name}.bias", (size,)) if kind is Norm.LAYER_BIAS else None)

    def weight(self, names: Sequence[str], rows: Sequence[int], inputs: int, *, transposed: bool = False) -> Tensor:
        """The parts of a linear's weight, joined: [sum of rows, inputs]."""
        if not transposed:
            return self.joined(names, ".weight", rows, (inputs,))
        parts = [self.take(f"{name}.weight", (inputs, size)).t() for name, size in _named_parts(names, rows)]
        return torch.cat(parts).contiguous()

    def joined(self, names: Sequence[str], suffix: str, rows: Sequence[int], rest: tuple[int, ...] = ()) -> Tensor:
        """Tensors of ``rows`` rows each, one below the other."""
        parts = [self.take(name + suffix, (size, *rest)) for name, size in _named_parts(names, rows)]
        return join_rows(parts)


def _named_parts(names: Sequence[str], rows: Sequence[int]) -> list[tuple[str, int]]:
    # One name for several parts is a checkpoint that stores them merged.
    sizes = rows if len(names) == len(rows) else (sum(rows),)
    return list(zip(names, sizes, strict=True))
