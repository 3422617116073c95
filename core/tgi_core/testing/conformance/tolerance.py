"""How far a backend may be from the reference: the one place that says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Tolerance(NamedTuple):
    """Bounds for results in one type.

    Attributes:
        kernel: of one operation: absolute and relative difference of each number.
        logprob: of a whole tiny model: difference of a token's log-probability, in nats.
    """

    kernel: float
    logprob: float


TOLERANCES: Mapping[str, Tolerance] = {
    "float32": Tolerance(kernel=2e-5, logprob=2e-3),
    "float16": Tolerance(kernel=4e-3, logprob=0.06),
    "bfloat16": Tolerance(kernel=3e-2, logprob=0.4),
}
"""By the type that is computed in. Sums are float32 in every type, so only roundings of inputs and results count."""

CHOICE_LOGPROB = 1e-4
"""Of the choice of tokens out of given logits, which is float32 arithmetic whatever their type."""


def difference(actual: Tensor, expected: Tensor, tolerance: float) -> str:
    """What is wrong with ``actual``, "" where nothing is. Whole numbers and truth values must be equal.

    Args:
        actual: on any device.
        expected: on the host.
        tolerance: absolute and relative.
    """
    if actual.shape != expected.shape:
        return f"has shape {list(actual.shape)} and not {list(expected.shape)}"
    if actual.dtype != expected.dtype:
        return f"has type {_name(actual.dtype)} and not {_name(expected.dtype)}"
    actual = actual.detach().cpu()
    if not expected.dtype.is_floating_point:
        wrong = actual != expected
    else:
        wrong = ~torch.isclose(actual.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
    if not wrong.any():
        return ""
    index = tuple(wrong.nonzero()[0].tolist())
    count, total = int(wrong.sum()), wrong.numel()
    text = f"{count} of {total} numbers are wrong, first at {list(index)}: {actual[index].item()!r} and not "
    text += f"{expected[index].item()!r}"
    if expected.dtype.is_floating_point:
        finite = (actual.double() - expected.double()).abs().nan_to_num(nan=float("inf"))
        text += f"; they differ by up to {finite[wrong].max().item():.3g}, allowed is {tolerance:.3g}"
    return text


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
