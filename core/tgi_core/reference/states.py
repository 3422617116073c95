"""Convolutions that keep their last inputs by slot."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tgi_core.contract.states import ConvWeights, StepRows

_BITS: Mapping[int, torch.dtype] = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers as wide as a number of so many bytes."""


def begun_states(state_SX: Tensor, slots_R: Tensor, first_positions_R: Tensor) -> Tensor:
    """Copies of the states of some rows, [R, ...]; zeros where a row is its slot's beginning."""
    state_RX = state_SX.index_select(0, slots_R)
    # What is left of another request need not be a number, so bits are cleared: a product would keep it, and a choice
    # between tensors takes a CPU several times as long.
    bits_RX = state_RX.view(_BITS[state_RX.itemsize])
    kept_R = -(first_positions_R != 0).to(bits_RX.dtype)
    bits_RX.bitwise_and_(kept_R.view(-1, *[1] * (bits_RX.dim() - 1)))
    return state_RX


def causal_conv(x_TC: Tensor, weights: ConvWeights, state_SJC: Tensor, rows: StepRows) -> Tensor:
    """Convolve each row with what its slot holds; see ``StateKernels.causal_conv``. Returns float32 [T, C]."""
    decodes = rows.num_decodes
    if decodes == len(x_TC):
        return _decode(x_TC, weights, state_SJC, rows)
    prefilled_TC = _prefill(x_TC[decodes:], weights, state_SJC, rows)
    if decodes == 0:
        return prefilled_TC
    return torch.cat((_decode(x_TC[:decodes], weights, state_SJC, rows), prefilled_TC))


def _decode(x_BC: Tensor, weights: ConvWeights, state_SJC: Tensor, rows: StepRows) -> Tensor:
    slots_B = rows.slots_B[: len(x_BC)]
    kept_BJC = begun_states(state_SJC, slots_B, rows.first_positions_B[: len(x_BC)])
    inputs_BWC = torch.cat((kept_BJC, x_BC[:, None]), dim=1)
    state_SJC.index_copy_(0, slots_B, inputs_BWC[:, 1:])
    output_BC = (inputs_BWC.float() * weights.weight_CW.t().float()).sum(dim=1)
    return output_BC if weights.bias_C is None else output_BC + weights.bias_C.float()


def _prefill(x_TC: Tensor, weights: ConvWeights, state_SJC: Tensor, rows: StepRows) -> Tensor:
    """The rows behind those that decode, side by side, each behind what its slot holds: one pass for all of them."""
    kept = state_SJC.shape[1]
    first, device = rows.num_decodes, x_TC.device
    slots_R, starts_R = rows.slots_B[first:], rows.q_starts_B[first:] - first
    gaps_R = kept * torch.arange(len(slots_R), device=device)
    gaps_T = (gaps_R + kept).repeat_interleave(starts_R.diff(), output_size=len(x_TC))
    places_T = torch.arange(len(x_TC), device=device) + gaps_T
    places_RJ = (starts_R[:-1] + gaps_R)[:, None] + torch.arange(kept, device=device)
    inputs_YC = x_TC.new_empty((len(x_TC) + places_RJ.numel(), x_TC.shape[1]))
    inputs_YC.index_copy_(0, places_T, x_TC)
    kept_RJC = begun_states(state_SJC, slots_R, rows.first_positions_B[first:])
    inputs_YC.index_copy_(0, places_RJ.flatten(), kept_RJC.flatten(0, 1))
    lasts_RJ = places_RJ + starts_R.diff()[:, None]
    lasts_RJC = inputs_YC.index_select(0, lasts_RJ.flatten()).view(*lasts_RJ.shape, -1)
    state_SJC.index_copy_(0, slots_R, lasts_RJC)
    inputs_YC = inputs_YC.float()
    output_YC = inputs_YC[kept:] * weights.weight_CW[:, -1].float()
    for tap in range(kept):
        output_YC.addcmul_(inputs_YC[tap : tap + len(output_YC)], weights.weight_CW[:, tap].float())
    if weights.bias_C is not None:
        output_YC += weights.bias_C.float()
    return output_YC.index_select(0, places_T - kept)
