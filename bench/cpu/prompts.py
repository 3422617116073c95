"""Prompts of token ids that differ from run to run, so that no prefix cache helps anyone."""

from __future__ import annotations

import random


def token_prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """``count`` prompts of exactly ``length`` ordinary token ids of the demo model."""
    rng = random.Random(seed)
    return [[rng.randrange(1000, 40000) for _ in range(length)] for _ in range(count)]
