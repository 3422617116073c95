"""What lets the tokens of a sequence see each other: attention, and what some models have in its place."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from tgi_core.models.step import Step


class Mixer(Protocol):
    """One layer's mixer, with its weights; it knows which of the step's caches and states are its own."""

    def __call__(self, x_TE: Tensor, step: Step) -> Tensor:
        """Normed hidden states of all tokens -> what the layer adds to the residual stream, both [T, E]."""
