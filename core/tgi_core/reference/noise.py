"""Counter-based Gumbel noise: a pure function of (seed, choice, output position, token id).

The integers are the same on every backend, so a seeded request draws the same noise whatever its neighbours, the batch
size, a preemption or the hardware. The counter is absorbed word by word into two 32-bit keys, as in the counter-based
generators of Salmon et al. 2011; the mixing function is ``tgi_core.sampling.mixing.mix``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.sampling.mixing import TOKEN_STEP, mix, shift_right, signed

KEY_SALTS = (0x243F6A88, 0x85A308D3)
"""Starting values of the two keys: the first digits of pi after the point, numbers with nothing up their sleeve."""


def gumbel_noise(seed_B: Tensor, choice_B: Tensor, position_B: Tensor, token_ids: Tensor) -> Tensor:
    """Noise of each row's candidates.

    Args:
        seed_B: int64, the bits of an unsigned 64-bit seed.
        choice_B: int32, index of the choice among several of one request.
        position_B: int32, index of the new token in the row's output.
        token_ids: int32 [V], the same for all rows, or [B, V].

    Returns:
        float32 [B, V] of independent standard Gumbel values, always finite.
    """
    bits_BV = noise_bits(seed_B, choice_B, position_B, token_ids)
    # The odd multiples of 2**-24 lie strictly between 0 and 1 and are exact in float32.
    uniform_BV = shift_right(bits_BV, 9).mul_(2).add_(1).to(torch.float32).mul_(2.0**-24)
    return uniform_BV.log_().neg_().log_().neg_()


def noise_bits(seed_B: Tensor, choice_B: Tensor, position_B: Tensor, token_ids: Tensor) -> Tensor:
    """The 32 random bits behind ``gumbel_noise``, as int32 [B, V]."""
    # Filled on the device: a captured step copies nothing from the host.
    salts = [torch.full((1, 1), signed(salt), dtype=torch.int32, device=seed_B.device) for salt in KEY_SALTS]
    key_2B1 = torch.cat(salts)
    for word_B in (_low_word(seed_B), _low_word(seed_B >> 32), choice_B, position_B):
        key_2B1 = mix(key_2B1 ^ word_B)
    key_2B1 = key_2B1[..., None]
    bits_BV = (token_ids * signed(TOKEN_STEP)) ^ key_2B1[0]
    return mix(bits_BV, key_2B1[1])


def _low_word(x_B: Tensor) -> Tensor:
    """The low 32 bits of int64 as int32."""
    word_B = x_B & 0xFFFFFFFF
    return torch.where(word_B >= 1 << 31, word_B - (1 << 32), word_B).to(torch.int32)
