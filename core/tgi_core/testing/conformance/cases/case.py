"""A case: one operation on certain inputs, the same for a backend and for the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import AttentionSpec, Capabilities, Kernels
from tgi_core.reference import ReferenceKernels


class OracleKernels(ReferenceKernels):
    """The reference as the other side of a comparison."""


Outputs = Mapping[str, Tensor]
"""Results by name; also what an operation must not overwrite."""

HEAD_DIMS = (64, 80, 96, 128, 256)
GROUP_SIZES = (1, 4, 7, 8, 16)
"""Query heads that share a key head."""


class Bench:
    """Makes the inputs of a case: the same numbers on every device, in the type under test.

    Args:
        device: where they are to lie.
        dtype: of what ``normal`` makes.
        seed: of the numbers.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self.device = device
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, mean: float = 0.0, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        """Normally distributed numbers."""
        numbers = torch.randn(shape, generator=self._generator) * scale + mean
        return numbers.to(dtype or self.dtype).to(self.device)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Integers from ``low`` to ``high - 1``."""
        return torch.randint(low, high, shape, generator=self._generator).to(dtype).to(self.device)

    def permutation(self, count: int) -> Tensor:
        """The numbers below ``count``, in any order: int64 on the host."""
        return torch.randperm(count, generator=self._generator)

    def tensor(self, values: Sequence[object], dtype: torch.dtype) -> Tensor:
        """Given values."""
        return torch.tensor(values, dtype=dtype).to(self.device)


Run = Callable[[Kernels, Bench], Outputs]


class Case(NamedTuple):
    """One comparison with the reference.

    Attributes:
        operation: the method of ``Kernels``.
        label: what is special about the inputs.
        run: makes the inputs and runs the operation.
        spec: the attention that is asked for, where it is one; ``supports`` may refuse it.
        suspects: mistakes that are easily made, and what the reference gives with them: a wrong result that equals one
            is told by its name.
        tolerance: where it is not that of the type.
        captured: runs as part of a step that is recorded, where the backend declares graphs.
    """

    operation: str
    label: str
    run: Run
    spec: AttentionSpec | None = None
    suspects: Mapping[str, Run] = {}
    tolerance: float | None = None
    captured: bool = False


class Scope(NamedTuple):
    """Which shapes are wanted.

    Attributes:
        capabilities: of the backend.
        quick: the fewest that still say something.
    """

    capabilities: Capabilities
    quick: bool

    @property
    def head_dims(self) -> tuple[int, ...]:
        """Head sizes that the backend takes."""
        sizes = self.capabilities.head_dims or HEAD_DIMS
        return sizes[:1] if self.quick else sizes

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Query heads a key head."""
        return (4,) if self.quick else GROUP_SIZES

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Tokens in a block."""
        sizes = self.capabilities.block_sizes
        return sizes[:1] if self.quick else sizes


CaseGenerator = Callable[[Scope], Iterator[Case]]
