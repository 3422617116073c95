"""The tables of cos and sin."""

from __future__ import annotations

import math

import torch

from tgi_core.models.ropes import LinearScaling, RopeSpec, YarnScaling
from tgi_core.models.rotary import rotary_table

CPU = torch.device("cpu")


def test_angles() -> None:
    table = rotary_table(RopeSpec(theta=100.0, rotary_dim=4), 7, CPU)
    assert table.shape == (7, 4)
    expected = [math.cos(6), math.cos(0.6), math.sin(6), math.sin(0.6)]
    torch.testing.assert_close(table[6], torch.tensor(expected))


def test_linear_scaling_stretches_positions() -> None:
    plain = rotary_table(RopeSpec(theta=100.0, rotary_dim=4), 4, CPU)
    stretched = rotary_table(RopeSpec(theta=100.0, rotary_dim=4, scaling=LinearScaling(3.0)), 10, CPU)
    torch.testing.assert_close(stretched[::3], plain)


def test_yarn_magnifies_and_keeps_the_fastest_pair() -> None:
    scaling = YarnScaling(4.0, 1.25, 32.0, 1.0, 512, True)
    plain = rotary_table(RopeSpec(theta=1e4, rotary_dim=32), 50, CPU)
    table = rotary_table(RopeSpec(theta=1e4, rotary_dim=32, scaling=scaling), 50, CPU)
    torch.testing.assert_close(table[:, 0], plain[:, 0] * 1.25)
    slowest = torch.tensor([math.cos(position / 4 * 1e4 ** (-15 / 16)) for position in range(50)])
    torch.testing.assert_close(table[:, 15], slowest * 1.25)
