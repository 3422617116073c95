"""Models that choose tokens under masks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import click
import numpy as np
from numpy.typing import NDArray


class Replier(ABC):
    """A model: chooses the next token of one reply under a mask."""

    @abstractmethod
    def next_id(self, mask: NDArray[np.uint8]) -> int:
        """``mask`` uint8 [mask_words * 4], bit t % 8 of byte t // 8 is token t's."""


class RandomReplier(Replier):
    """Any allowed token, each as likely as the others."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def next_id(self, mask: NDArray[np.uint8]) -> int:
        return int(self._rng.choice(np.flatnonzero(np.unpackbits(mask, bitorder="little"))))


class TextReplier(Replier):
    """A given text, in the longest tokens that the masks allow."""

    def __init__(self, text: str, pieces: Mapping[str, Sequence[int]], eos: int) -> None:
        self._rest = text
        self._pieces = pieces
        self._eos = eos

    def next_id(self, mask: NDArray[np.uint8]) -> int:
        if not self._rest:
            return self._eos
        for length in range(min(len(self._rest), 24), 0, -1):
            for token_id in self._pieces.get(self._rest[:length], ()):
                if mask[token_id // 8] >> (token_id % 8) & 1:
                    self._rest = self._rest[length:]
                    return token_id
        raise click.ClickException(f"The reply cannot go on with {self._rest!r}.")
