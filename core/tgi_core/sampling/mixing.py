"""Integer hashing on a device: the same 32 bits on every backend.

The mixing function is "lowbias32" (C. Wellons, hash-prospector, 2018). Words are int32 tensors that hold the bits of
unsigned numbers.
"""

from __future__ import annotations

from torch import Tensor

TOKEN_STEP = 0x9E3779B9
"""2**32 over the golden ratio: spreads consecutive token ids over all bits."""


def mix(x: Tensor, key: Tensor | None = None) -> Tensor:
    """lowbias32 of int32 words; ``key`` is a second key that enters between its two rounds. Overwrites ``x``."""
    x ^= shift_right(x, 16)
    x *= 0x7FEB352D
    x ^= shift_right(x, 15)
    if key is not None:
        x ^= key
    x *= signed(0x846CA68B)
    x ^= shift_right(x, 16)
    return x


def shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift of int32; torch's own is arithmetic."""
    return (x >> bits).bitwise_and_((1 << (32 - bits)) - 1)


def signed(word: int) -> int:
    """The bits of an unsigned 32-bit number as a signed one."""
    return word - (1 << 32) if word >= 1 << 31 else word
