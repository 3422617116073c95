"""CDNA 3 (gfx942) multiplies e4m3fnuz, not the e4m3fn of checkpoints: the exact way from one to the other.

For weights that stay in 8 bits; so far checkpoints in fp8 are widened while they load. CDNA 4 and RDNA 4 take e4m3fn.
"""

from __future__ import annotations

import torch
from torch import Tensor

_NEGATIVE_ZERO, _NAN = -128, (127, -1)
"""As int8: 0x80 is -0 in e4m3fn and the only NaN of e4m3fnuz; 0x7f and 0xff are NaN in e4m3fn alone."""


def to_fnuz(weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """float8_e4m3fn weights and their scales as float8_e4m3fnuz and scales; products are the same, bit for bit.

    The exponent's bias is larger by one: the same bits mean half the value, and scales double. -0 becomes 0 and NaN
    stays NaN. A scale must lie below half of its type's largest number.
    """
    bits = weight.view(torch.int8)
    is_nan = (bits == _NAN[0]) | (bits == _NAN[1])
    bits = torch.where(bits == _NEGATIVE_ZERO, 0, bits)
    return torch.where(is_nan, _NEGATIVE_ZERO, bits).view(torch.float8_e4m3fnuz), scale * 2
