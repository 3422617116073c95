"""Tables that tell positions apart."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tgi_core.models.encoder_decoder.spec import DistanceBuckets, Positions

_LONGEST_WAVE = 10_000.0


def sine_table(rows: int, size: int, kind: Positions) -> Tensor:
    """Embeddings of positions 0 to ``rows`` - 1: sines in the first half of the features, cosines in the second.

    Sources: Vaswani et al. 2017; with ``Positions.SINES_TO_END`` as in tensor2tensor. Returns float32 [rows, size].
    """
    pairs = size // 2
    steps = pairs if kind is Positions.SINES else pairs - 1
    frequencies = torch.exp(torch.arange(pairs, dtype=torch.float64) * (-math.log(_LONGEST_WAVE) / steps))
    angles = torch.arange(rows, dtype=torch.float64)[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=1).float()


def backward_biases(bias_BH: Tensor, buckets: DistanceBuckets) -> Tensor:
    """Of queries that see what lies before them: for each distance 0 to ``max_distance`` its bias, [H, X]."""
    distances = torch.arange(buckets.max_distance + 1)
    return _take(bias_BH, _bucket(distances, buckets.num_buckets, buckets.max_distance))


def two_way_biases(bias_BH: Tensor, buckets: DistanceBuckets) -> Tensor:
    """Of queries that see both ways: for each key's position less the query's, from -``max_distance`` to
    ``max_distance``, its bias, [H, X]."""
    relative = torch.arange(-buckets.max_distance, buckets.max_distance + 1)
    half = buckets.num_buckets // 2
    return _take(bias_BH, _bucket(relative.abs(), half, buckets.max_distance) + (relative > 0) * half)


def _bucket(distances: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    exact = num_buckets // 2
    # In float32, as the models were trained: rounding decides where some of the wider buckets begin.
    share = torch.log(distances.float() / exact) / math.log(max_distance / exact)
    wide = (exact + share * (num_buckets - exact)).clamp(0, num_buckets - 1).long()
    return torch.where(distances < exact, distances, wide)


def _take(bias_BH: Tensor, buckets_X: Tensor) -> Tensor:
    return bias_BH.index_select(0, buckets_X.to(bias_BH.device)).t().contiguous()
