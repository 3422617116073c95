"""Sampling rows without a model; those of the conformance kit."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tgi_core.contract import Kernels, Sampled
from tgi_core.sampling.params import Tier
from tgi_core.testing.sampling_rows import Row, make_inputs


def sample(kernels: Kernels, logits_BV: Tensor, rows: Sequence[Row], *, tier: Tier | None = None) -> Sampled:
    """Sample the rows; the logits stay as they are."""
    logits_BV = logits_BV.clone()
    return kernels.sample(logits_BV, make_inputs(rows, logits_BV, tier=tier))


__all__ = ["Row", "make_inputs", "sample"]
