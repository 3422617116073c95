"""The sampling parameters of one request, as the engine and the device see them."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Tier(IntEnum):
    """How much work the sampling of a step needs; known on the host, part of a graph's key."""

    GREEDY = 0
    SAMPLED = 1
    """Temperature, top-k and top-p."""
    FULL = 2
    """Everything, also the rules that look at the tokens so far."""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """Validated parameters; every default is neutral.

    Attributes:
        do_sample: draw from the distribution; otherwise take the best token.
        temperature: divides the logits, > 0.
        top_k: keep the k best tokens; 0 keeps all.
        top_p: keep the smallest set of best tokens with this probability mass; 1 keeps all.
        repetition_penalty: > 0; 1 changes nothing. Acts once on each distinct token of prompt and output.
        seed: key of the counter-based noise, an unsigned 64-bit number.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0

    @property
    def tier(self) -> Tier:
        """The cheapest tier that can sample this request."""
        if self.repetition_penalty != 1.0:
            return Tier.FULL
        return Tier.SAMPLED if self.do_sample else Tier.GREEDY
