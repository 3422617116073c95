"""The selective scan: one step for rows that decode, pieces of chunks for the others."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract.states import ScanInputs, ScanWeights, StepRows
from tgi_core.reference.chunks import Chunks, cut
from tgi_core.reference.states import begun_states

_CACHE_BYTES = 2 << 20
"""A piece's states on a CPU: what stays in a core's cache is faster than what needs fewer operations."""

_PIECE_BYTES = 64 << 20
"""The same elsewhere, where each operation is a launch."""


class _Inputs(NamedTuple):
    """What the recurrence reads, float32; ``step`` is above 0."""

    x_TC: Tensor
    b_TZ: Tensor
    c_TZ: Tensor
    step_TC: Tensor


def selective_scan(inputs: ScanInputs, weights: ScanWeights, state_SCZ: Tensor, rows: StepRows) -> Tensor:
    """Every row's tokens through its slot's state; see ``StateKernels.selective_scan``. Returns float32 [T, C]."""
    step_TC = F.softplus(inputs.dt_TC.float() + weights.dt_bias_C)
    read = _Inputs(inputs.x_TC.float(), inputs.b_TZ.float(), inputs.c_TZ.float(), step_TC)
    decodes, parts = rows.num_decodes, []
    if decodes:
        parts.append(_decode(_Inputs(*(part[:decodes] for part in read)), weights.a_CZ, state_SCZ, rows))
    if decodes < len(read.x_TC):
        parts.append(_prefill(read, weights.a_CZ, state_SCZ, rows)[decodes:])
    output_TC = parts[0] if len(parts) == 1 else torch.cat(parts)
    return output_TC.addcmul_(read.x_TC, weights.d_C).mul_(F.silu(inputs.gate_TC.float()))


def _decode(inputs: _Inputs, a_CZ: Tensor, state_SCZ: Tensor, rows: StepRows) -> Tensor:
    x_BC, b_BZ, c_BZ, step_BC = inputs
    slots_B = rows.slots_B[: len(x_BC)]
    state_BCZ = begun_states(state_SCZ, slots_B, rows.first_positions_B[: len(x_BC)])
    decay_BCZ = (step_BC[..., None] * a_CZ).exp_()
    state_BCZ = torch.addcmul((step_BC * x_BC)[..., None] * b_BZ[:, None], decay_BCZ, state_BCZ)
    state_SCZ.index_copy_(0, slots_B, state_BCZ)
    return (c_BZ[:, None] @ state_BCZ.transpose(-1, -2)).squeeze(1)


def _prefill(inputs: _Inputs, a_CZ: Tensor, state_SCZ: Tensor, rows: StepRows) -> Tensor:
    """Outputs of all tokens of the rows that do not decode.

    The chunks of a piece are scanned at once, each as if its state had been empty, while the products of their decays
    are kept; these then bring in the states, chunk after chunk. The decays lie between 0 and 1 and nothing is ever
    divided by them, so no length can overflow.
    """
    device = a_CZ.device
    most = max(1, (_CACHE_BYTES if device.type == "cpu" else _PIECE_BYTES) // (4 * a_CZ.numel()))
    chunks = cut(rows, math.isqrt(most), device)
    size = chunks.tokens_YN.shape[1]
    # A repetition neither decays nor adds.
    step_YNC = chunks.gather(inputs.step_TC) * chunks.is_own_YN[..., None]
    added_YNC = step_YNC * chunks.gather(inputs.x_TC)
    b_YNZ, c_YNZ = chunks.gather(inputs.b_TZ), chunks.gather(inputs.c_TZ)
    slots_R = rows.slots_B.index_select(0, chunks.rows_R)
    state_RCZ = begun_states(state_SCZ, slots_R, rows.first_positions_B.index_select(0, chunks.rows_R))
    output_YNC = torch.empty_like(step_YNC)
    for counts, part in _pieces(chunks, most):
        decay_YNCZ = (step_YNC[part, ..., None] * a_CZ).exp_()
        states_YNCZ = added_YNC[part, ..., None] * b_YNZ[part, :, None]
        for token in range(1, size):
            states_YNCZ[:, token].addcmul_(decay_YNCZ[:, token], states_YNCZ[:, token - 1])
            decay_YNCZ[:, token].mul_(decay_YNCZ[:, token - 1])
        end = 0
        for count in counts:
            start, end = end, end + count
            states_RNCZ, state = states_YNCZ[start:end], state_RCZ[:count]
            states_RNCZ.addcmul_(decay_YNCZ[start:end], state[:, None])
            state.copy_(states_RNCZ[:, -1])
        output_YNC[part] = (c_YNZ[part, :, None] @ states_YNCZ.transpose(-1, -2)).squeeze(2)
    state_SCZ.index_copy_(0, slots_R, state_RCZ)
    return chunks.scatter(output_YNC, len(inputs.x_TC))


def _pieces(chunks: Chunks, most: int) -> list[tuple[list[int], slice]]:
    """Chunks of up to ``most`` tokens that are computed together: the counts of each piece, and where they lie.

    All n-th chunks are in one piece, however many they are.
    """
    size = chunks.tokens_YN.shape[1]
    pieces: list[tuple[list[int], slice]] = []
    counts: list[int] = []
    start = end = 0
    for count in chunks.counts:
        if counts and (end - start + count) * size > most:
            pieces.append((counts, slice(start, end)))
            counts, start = [], end
        counts.append(count)
        end += count
    return [*pieces, (counts, slice(start, end))]
