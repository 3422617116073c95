"""float32 to bfloat16 without torch; numpy has no bfloat16, so the bits travel as uint16."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BF16_NAN = np.uint16(0x7FC0)


def round_to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16 of each float32, ties to even, as torch rounds; a NaN becomes 0x7FC0."""
    bits = values.view(np.uint32)
    round_up = bits >> np.uint32(16)
    round_up &= np.uint32(1)
    round_up += np.uint32(0x7FFF)
    # Only a NaN can overflow here; it is replaced below.
    round_up += bits
    round_up >>= np.uint32(16)
    rounded = round_up.astype(np.uint16)
    is_nan = np.isnan(values)
    if is_nan.any():
        rounded[is_nan] = _BF16_NAN
    return rounded
