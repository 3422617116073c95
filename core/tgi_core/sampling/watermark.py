"""A watermark in sampled text and its detection. Source: Kirchenbauer et al. 2023, "A Watermark for LLMs".

The token before decides which share ``gamma`` of the vocabulary is green; green tokens get a higher score. Whoever
knows the rule counts the green tokens of a text: without the watermark their share is ``gamma``.

Colours come from a hash instead of the paper's seeded permutation, so that they are the same on every device and need
no list of the vocabulary.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

HASH_KEY = 15485863
"""The millionth prime: the key of the paper's reference implementation, and of TGI's."""

_MASK = 0xFFFFFFFF
_TOKEN_STEP = 0x9E3779B9


class WatermarkScore(NamedTuple):
    """What a text shows.

    Attributes:
        num_scored: distinct pairs of neighbouring tokens; a repeated pair says nothing new.
        num_green: those whose second token is green.
        z_score: standard deviations by which that is more than chance; above 4 a text is watermarked for sure enough.
    """

    num_scored: int
    num_green: int
    z_score: float


def detect(token_ids: Sequence[int], gamma: float) -> WatermarkScore:
    """Score a text, tokenized as the model would.

    Args:
        token_ids: at least two tokens, without the prompt or with its last one first.
        gamma: the share of green tokens that the generating server used, > 0 and < 1.

    Raises:
        ValueError: there are fewer than two tokens, or ``gamma`` is out of its range.
    """
    pairs = set(pairwise(token_ids))
    if not pairs or not 0.0 < gamma < 1.0:
        raise ValueError("detection needs at least two tokens and a gamma between 0 and 1")
    num_green = sum(is_green(previous, token, gamma) for previous, token in pairs)
    z_score = (num_green - gamma * len(pairs)) / math.sqrt(len(pairs) * gamma * (1 - gamma))
    return WatermarkScore(len(pairs), num_green, z_score)


def is_green(previous_id: int, token_id: int, gamma: float) -> bool:
    """Whether a token is green after another one."""
    # Devices hold gamma in float32; multiplying it by a power of two is exact.
    (rounded_gamma,) = struct.unpack("f", struct.pack("f", gamma))
    return colour_bits(previous_id, token_id) < int(rounded_gamma * 2**32)


def colour_bits(previous_id: int, token_id: int) -> int:
    """The unsigned 32 bits that decide; ``tgi_core.sampling.rules.watermark`` computes the same on a device."""
    first_key = _mix(HASH_KEY ^ previous_id)
    second_key = _mix(HASH_KEY ^ first_key)
    return _mix((token_id * _TOKEN_STEP & _MASK) ^ first_key, second_key)


def _mix(x: int, key: int = 0) -> int:
    """lowbias32 as ``tgi_core.sampling.mixing.mix``, on unsigned Python integers."""
    x ^= x >> 16
    x = x * 0x7FEB352D & _MASK
    x ^= x >> 15
    x ^= key
    x = x * 0x846CA68B & _MASK
    return x ^ (x >> 16)
