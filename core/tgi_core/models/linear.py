"""The smallest parts of a model's weights."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from tgi_core.contract.kernels import PackedWeight


class NormWeights(NamedTuple):
    """One norm's weight, over the last axis of what it norms, and its bias where it has one."""

    weight: Tensor
    bias: Tensor | None = None


class Linear(NamedTuple):
    """A packed weight and its bias."""

    weight: PackedWeight
    bias: Tensor | None = None
