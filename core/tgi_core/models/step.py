"""What a forward gets beside its weights: the step's tokens, whose they are, and where their memory lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from tgi_core.contract.kernels import PreparedAttention
from tgi_core.contract.states import StepRows


class KVView(NamedTuple):
    """One KV group's part of a step.

    Attributes:
        slot_mapping_T: where each token's keys and values go.
        prepared: what ``prepare_attention`` made of the group's batch.
    """

    slot_mapping_T: Tensor
    prepared: PreparedAttention


class Step(NamedTuple):
    """The tokens that a forward computes.

    Attributes:
        ids_T: int32, token ids.
        positions_T: int64, their positions.
        rotaries: (cos, sin) of the positions, for each of the model's ``ropes``.
        rows: whose tokens they are.
        views: one for each KV group.
        caches: one for each layer that attends, as ``AttentionSpec.cache_shape`` says.
        states: one for each of the model's ``states``: [S, ...].
    """

    ids_T: Tensor
    positions_T: Tensor
    rotaries: Sequence[tuple[Tensor, Tensor]]
    rows: StepRows
    views: Sequence[KVView]
    caches: Sequence[Tensor]
    states: Sequence[Tensor]


class EncoderStep(NamedTuple):
    """The inputs that an encoder computes, whole, one behind the other.

    Attributes:
        ids_T: int32, their tokens.
        positions_T: int64, each token's position in its input.
        lens: tokens of each input, on the host; none is empty.
        slot_mapping_T: int64, where the keys and values of each token go.
        caches: as in ``Step``.
        slots: whose input each is, on the host.
    """

    ids_T: Tensor
    positions_T: Tensor
    lens: Sequence[int]
    slot_mapping_T: Tensor
    caches: Sequence[Tensor]
    slots: Sequence[int]
