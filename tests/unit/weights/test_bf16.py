"""Rounding to bfloat16 against torch."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tgi_core.weights.bf16 import round_to_bf16


@given(hnp.arrays(np.uint32, st.integers(1, 64), elements=st.integers(0, 2**32 - 1)))
def test_every_bit_pattern_rounds_as_torch_rounds(bits: NDArray[np.uint32]) -> None:
    values = bits.view(np.float32)
    rounded = torch.from_numpy(round_to_bf16(values)).view(torch.bfloat16)
    expected = torch.from_numpy(values.copy()).to(torch.bfloat16)
    # torch's scalar and vector code give a NaN different bits.
    assert torch.equal(rounded.isnan(), expected.isnan())
    assert torch.equal(rounded[~rounded.isnan()].view(torch.int16), expected[~expected.isnan()].view(torch.int16))


def test_ties_overflow_and_nan() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000], np.uint32)
    expected = [0x3F80, 0x3F82, 0x7F80, 0x7FC0, 0x7FC0, 0x7F80]
    assert round_to_bf16(bits.view(np.float32)).tolist() == expected


def test_input_is_left_alone() -> None:
    values = np.array([1.001, 2.002], np.float32)
    before = values.copy()
    round_to_bf16(values)
    np.testing.assert_array_equal(values, before)
