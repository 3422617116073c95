"""Numbers on the wire."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tgi_api.numbers import float32_json, float32_or_none


def as_float32(value: float) -> float:
    """The float32 next to ``value``; infinite beyond the largest."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_text_is_json_and_reads_back_as_the_same_float32(value: float) -> None:
    text = float32_json(value)
    assert as_float32(json.loads(text)) == value
    assert float32_or_none(value) == float(text)
    num_digits = len(Decimal(text.decode()).normalize().as_tuple().digits)
    if num_digits > 1:
        shorter = f"{value:.{num_digits - 2}e}"
        assert as_float32(float(shorter)) != value


def test_known_texts() -> None:
    assert float32_json(float(np.float32(-2.5839844))) == b"-2.5839844"
    assert float32_json(0.0) == b"0.0"
    assert float32_json(float(np.float32(1e-10))) == b"1e-10"
    for value in (float("nan"), float("inf"), float("-inf")):
        assert float32_json(value) == b"null"
        assert float32_or_none(value) is None
