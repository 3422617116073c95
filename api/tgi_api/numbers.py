"""Log-probabilities on the wire: the shortest text that reads back as the same float32, null when not finite."""

from __future__ import annotations

import math

import numpy as np


def float32_json(value: float) -> bytes:
    """``value``, which is a float32, as a JSON number or null."""
    return str(np.float32(value)).encode() if math.isfinite(value) else b"null"


def float32_or_none(value: float) -> float | None:
    """The float64 that prints as ``value`` does as a float32; None when it is not finite."""
    return float(str(np.float32(value))) if math.isfinite(value) else None
