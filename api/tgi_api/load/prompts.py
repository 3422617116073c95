"""Prompts that differ from run to run, so that no prefix cache helps anyone."""

from __future__ import annotations

import random

_WORDS = (
    "the a one two old new small large red blue green white black river house garden city road forest mountain sea "
    "winter summer morning night child mother father friend teacher doctor king horse bird dog fish tree stone water "
    "fire wind rain sun moon star book letter song story word name world day year time hand eye heart door window "
    "table bread light sound"
)


def text_prompts(count: int, seed: int, *, words: int = 32) -> list[str]:
    """``count`` prompts of ``words`` common words, each a token or two."""
    rng = random.Random(seed)
    choices = _WORDS.split()
    return [" ".join(rng.choices(choices, k=words)) for _ in range(count)]
