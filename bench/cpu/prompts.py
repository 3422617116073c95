"""Prompts that differ from run to run, so that no prefix cache helps anyone."""

from __future__ import annotations

import random

_WORDS = (
    "the a one two old new small large red blue green white black river house garden city road forest mountain sea "
    "winter summer morning night child mother father friend teacher doctor king horse bird dog fish tree stone water "
    "fire wind rain sun moon star book letter song story word name world day year time hand eye heart door window "
    "table bread light sound"
)


def token_prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """``count`` prompts of exactly ``length`` ordinary token ids of the demo model."""
    rng = random.Random(seed)
    return [[rng.randrange(1000, 40000) for _ in range(length)] for _ in range(count)]


def text_prompts(count: int, seed: int) -> list[str]:
    """``count`` prompts of 32 words, each a token or two."""
    rng = random.Random(seed)
    words = _WORDS.split()
    return [" ".join(rng.choices(words, k=32)) for _ in range(count)]
