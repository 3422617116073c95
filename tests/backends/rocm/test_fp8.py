"""From the 8-bit type of checkpoints to that of CDNA 3: every one of its 256 values."""

from __future__ import annotations

import torch

from tgi_rocm.fp8 import to_fnuz

EVERY_VALUE = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)


def test_every_value_times_its_scale_stays_what_it_was() -> None:
    scale = torch.tensor(0.37)
    weight, doubled = to_fnuz(EVERY_VALUE, scale)
    assert weight.dtype == torch.float8_e4m3fnuz
    expected, actual = EVERY_VALUE.float() * scale, weight.float() * doubled
    assert torch.equal(actual.isnan(), expected.isnan())
    assert int(expected.isnan().sum()) == 2
    numbers = ~expected.isnan()
    assert torch.equal(actual[numbers], expected[numbers])


def test_negative_zero_becomes_zero() -> None:
    """Its bits are the other type's only NaN."""
    weight, _ = to_fnuz(torch.tensor([-0.0]).to(torch.float8_e4m3fn), torch.tensor(1.0))
    assert weight.view(torch.uint8).tolist() == [0]


def test_scales_of_blocks_keep_their_shape() -> None:
    weight, scales = to_fnuz(EVERY_VALUE.view(16, 16), torch.full((2, 2), 0.5))
    assert weight.shape == (16, 16)
    assert torch.equal(scales, torch.ones(2, 2))
