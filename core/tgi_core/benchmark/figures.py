"""What the measurement of a backend's operations says, as data; needs no torch."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """What an operation does, for the shares of a step."""

    MATRIX = "matrix products"
    ATTENTION = "attention"
    OTHER = "norms, rope, choice of tokens"


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """What the device was measured to reach at best.

    Attributes:
        copy_tb_per_s: a large copy on the device, bytes read and written.
        matrix_tflop_per_s: a large square matrix product of torch's, in the model's type.
    """

    copy_tb_per_s: float
    matrix_tflop_per_s: float


class KernelFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One operation.

    Attributes:
        operation: its name, such as ``qkv`` or ``attention``.
        kind: what it counts as in the step's shares.
        launches: how often a step runs it; 0 for an alternative that the step's sum leaves out.
        time_us: median time of one run, in microseconds.
        moved_bytes: what it must read and write at least.
        flops: multiplications and additions of its matrix products.
        tb_per_s, tflop_per_s: these over the time.
        ceiling: the ceiling that binds it, "copy" or "matrix product".
        ceiling_share: the time that this ceiling allows over the time it took.
    """

    operation: str
    kind: Kind
    launches: int
    time_us: float
    moved_bytes: int
    flops: int
    tb_per_s: float
    tflop_per_s: float
    ceiling: str
    ceiling_share: float

    @property
    def step_ms(self) -> float:
        """Time of all its runs in a step."""
        return self.launches * self.time_us / 1e3


class StepFigure(msgspec.Struct, frozen=True, kw_only=True):
    """The operations of one step, and what they take together.

    Attributes:
        step: "decode" or "prefill".
        rows: requests in the step.
        tokens: tokens in each request's cache.
        operations: in the order in which a layer runs them.
        total_ms: all operations times their launches.
        kinds_ms: the same by kind.
    """

    step: str
    rows: int
    tokens: int
    operations: list[KernelFigure]
    total_ms: float
    kinds_ms: dict[str, float]


def kernel_figure(
    *, operation: str, kind: Kind, launches: int, time_s: float, moved_bytes: int, flops: int, ceilings: Ceilings
) -> KernelFigure:
    """Hold a time against the ceilings: the one that allows less binds."""
    copy_s = moved_bytes / ceilings.copy_tb_per_s / 1e12
    matrix_s = flops / ceilings.matrix_tflop_per_s / 1e12
    return KernelFigure(
        operation=operation,
        kind=kind,
        launches=launches,
        time_us=time_s * 1e6,
        moved_bytes=moved_bytes,
        flops=flops,
        tb_per_s=moved_bytes / time_s / 1e12,
        tflop_per_s=flops / time_s / 1e12,
        ceiling="matrix product" if matrix_s > copy_s else "copy",
        ceiling_share=max(copy_s, matrix_s) / time_s,
    )


def step_figure(step: str, rows: int, tokens: int, operations: Iterable[KernelFigure]) -> StepFigure:
    """Sum a step's operations."""
    figures = list(operations)
    kinds_ms = {kind.value: sum(figure.step_ms for figure in figures if figure.kind is kind) for kind in Kind}
    return StepFigure(
        step=step,
        rows=rows,
        tokens=tokens,
        operations=figures,
        total_ms=sum(kinds_ms.values()),
        kinds_ms=kinds_ms,
    )
