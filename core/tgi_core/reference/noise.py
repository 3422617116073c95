"""Counter-based Gumbel noise: a pure function of (seed, choice, output position, token id).

The integers are the same on every backend, so a seeded request draws the same noise whatever its neighbours, the batch
size, a preemption or the hardware. The mixing function is "lowbias32" (C. Wellons, hash-prospector, 2018); the counter
is absorbed word by word into two 32-bit keys, as in the counter-based generators of Salmon et al. 2011.
"""

from __future__ import annotations

import torch
from torch import Tensor

KEY_SALTS = (0x243F6A88, 0x85A308D3)
"""Starting values of the two keys: the first digits of pi after the point, numbers with nothing up their sleeve."""

TOKEN_STEP = 0x9E3779B9
"""2**32 over the golden ratio: spreads consecutive token ids over all bits."""


def gumbel_noise(seed_B: Tensor, position_B: Tensor, token_ids: Tensor, choice: int = 0) -> Tensor:
    """Noise of each row's candidates.

    Args:
        seed_B: int64, the bits of an unsigned 64-bit seed.
        position_B: int32, index of the new token in the row's output.
        token_ids: int32 [V], the same for all rows, or [B, V].
        choice: index of the choice among several of one request.

    Returns:
        float32 [B, V] of independent standard Gumbel values, always finite.
    """
    bits_BV = noise_bits(seed_B, position_B, token_ids, choice)
    # The odd multiples of 2**-24 lie strictly between 0 and 1 and are exact in float32.
    uniform_BV = _shift_right(bits_BV, 9).mul_(2).add_(1).to(torch.float32).mul_(2.0**-24)
    return uniform_BV.log_().neg_().log_().neg_()


def noise_bits(seed_B: Tensor, position_B: Tensor, token_ids: Tensor, choice: int = 0) -> Tensor:
    """The 32 random bits behind ``gumbel_noise``, as int32 [B, V]."""
    words = (_low_word(seed_B), _low_word(seed_B >> 32), torch.full_like(position_B, choice), position_B)
    # Filled on the device: a captured step copies nothing from the host.
    salts = [torch.full((1, 1), _signed(salt), dtype=torch.int32, device=seed_B.device) for salt in KEY_SALTS]
    key_2B1 = torch.cat(salts)
    for word_B in words:
        key_2B1 = _mix(key_2B1 ^ word_B)
    key_2B1 = key_2B1[..., None]
    bits_BV = (token_ids * _signed(TOKEN_STEP)) ^ key_2B1[0]
    return _mix(bits_BV, key_2B1[1])


def _mix(x: Tensor, key: Tensor | None = None) -> Tensor:
    """lowbias32; ``key`` is a second key that enters between its two rounds. Overwrites ``x``."""
    x ^= _shift_right(x, 16)
    x *= 0x7FEB352D
    x ^= _shift_right(x, 15)
    if key is not None:
        x ^= key
    x *= _signed(0x846CA68B)
    x ^= _shift_right(x, 16)
    return x


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift of int32; torch's own is arithmetic."""
    return (x >> bits).bitwise_and_((1 << (32 - bits)) - 1)


def _low_word(x_B: Tensor) -> Tensor:
    """The low 32 bits of int64 as int32."""
    word_B = x_B & 0xFFFFFFFF
    return torch.where(word_B >= 1 << 31, word_B - (1 << 32), word_B).to(torch.int32)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
