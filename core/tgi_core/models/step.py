"""What a forward gets beside its weights: the step's tokens, whose they are, and where their memory lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from tgi_core.contract.kernels import PreparedAttention


class KVView(NamedTuple):
    """One KV group's part of a step.

    Attributes:
        slot_mapping_T: where each token's keys and values go.
        prepared: what ``prepare_attention`` made of the group's batch.
    """

    slot_mapping_T: Tensor
    prepared: PreparedAttention


class StepRows(NamedTuple):
    """Whose tokens a step computes: row b has tokens ``q_starts[b]`` to ``q_starts[b + 1]`` of the T axis.

    Attributes:
        slots_B: int64, each row's slot; rows that only pad a step name the scratch slot.
        q_starts_B: int64 [B + 1].
        q_lens: tokens of each row, on the host.
        num_decodes: how many leading rows have one token.
        slots: ``slots_B`` on the host; empty in a recorded step, which does not know them.
    """

    slots_B: Tensor
    q_starts_B: Tensor
    q_lens: Sequence[int]
    num_decodes: int
    slots: Sequence[int]


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
