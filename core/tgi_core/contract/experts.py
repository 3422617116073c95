"""The operations of a mixture of experts, for models that have one; ``tgi_core.reference.experts`` is their meaning.

Shape letters beside the usual ones: X experts, R experts chosen for a token, F features inside an expert.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from torch import Tensor

PackedExperts = Any
"""What ``pack_experts`` returns and ``experts`` takes; only the kernels know its form."""


class Scoring(Enum):
    """How a router's logits become the scores that weigh experts."""

    SOFTMAX = "softmax over all experts, then the best are chosen"
    SOFTMAX_CHOSEN = "the best are chosen, then softmax over them"
    SIGMOID = "sigmoid of each, then the best are chosen"
    SIGMOID_CHOSEN = "the best are chosen, then sigmoid of each"
    SPARSE_MIXER = "the best one twice, each with softmax over those close to it"


class RoutingSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How experts are chosen for a token.

    Attributes:
        top_k: R.
        scoring: what logits become.
        renormalize: the chosen scores are divided by their sum.
        scale: multiplies the weights, last.
        num_groups, top_groups: experts lie in so many groups of equal size, and only those in the best ``top_groups``
            of them can be chosen. 1 and 1 for no groups.
        group_scores: a group is as good as the sum of so many of its best scores.
        closeness: of the sparse mixer: how far below the best a score may lie, as a share of it.
    """

    top_k: int
    scoring: Scoring = Scoring.SOFTMAX
    renormalize: bool = False
    scale: float = 1.0
    num_groups: int = 1
    top_groups: int = 1
    group_scores: int = 2
    closeness: float = 0.0


class Routed(NamedTuple):
    """The experts of each token: float32 [T, R] weights and int64 [T, R] numbers of the experts."""

    weights_TR: Tensor
    experts_TR: Tensor


class ExpertWeights(NamedTuple):
    """The experts of a layer: gated MLPs. ``gate_up`` is packed from [X, 2F, E], ``down`` from [X, E, F]."""

    gate_up: PackedExperts
    gate_up_bias_XN: Tensor | None
    down: PackedExperts
    down_bias_XE: Tensor | None


class ExpertKernels(ABC):
    """The part of ``Kernels`` that only mixtures of experts need."""

    @property
    def captures_experts(self) -> bool:
        """Whether ``route`` and ``experts`` can be captured: they copy nothing from the host and ask for no values."""
        return False

    @abstractmethod
    def pack_experts(self, weight_XNK: Tensor) -> PackedExperts:
        """Bring the experts' dense weights into the form ``experts`` is fastest on. Runs once, at load."""

    @abstractmethod
    def route(self, logits_TX: Tensor, spec: RoutingSpec, bias_X: Tensor | None) -> Routed:
        """Choose each token's experts.

        ``bias`` is added to the scores for the choice alone, not to the weights. Sources: Shazeer et al. 2017; groups
        and bias DeepSeek-AI 2024; the sparse mixer Liu et al. 2024.
        """

    @abstractmethod
    def experts(self, x_TE: Tensor, weights: ExpertWeights, routed: Routed, activation: str) -> Tensor:
        """The weighted sum of each token's experts: [T, E] -> [T, E], summed in float32.

        An expert is ``linear(gated_linear(x, gate_up), down)``; "activation" is one that ``activation_mul`` names.
        """
