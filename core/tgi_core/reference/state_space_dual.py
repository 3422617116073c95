"""The state space dual: one step for rows that decode, chunks of tokens for the others."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract.states import DualInputs, DualSpec, DualWeights, StepRows
from tgi_core.reference.chunks import cut, decays
from tgi_core.reference.states import begun_states

_CHUNK = 64
"""Tokens of a chunk: fewer make more steps one after the other, more make larger squares."""


class _Inputs(NamedTuple):
    """What the recurrence reads, float32; ``step`` is above 0."""

    x_THD: Tensor
    b_TGZ: Tensor
    c_TGZ: Tensor
    step_TH: Tensor


def state_space_dual(
    inputs: DualInputs, weights: DualWeights, state_SHDZ: Tensor, rows: StepRows, spec: DualSpec
) -> Tensor:
    """Every row's tokens through its slot's state; see ``StateKernels.state_space_dual``. Returns float32 [T, H, D]."""
    read, decodes = _read(inputs, weights, spec), rows.num_decodes
    parts = []
    if decodes:
        parts.append(_decode(_Inputs(*(part[:decodes] for part in read)), weights.a_H, state_SHDZ, rows))
    if decodes < len(read.x_THD):
        parts.append(_prefill(read, weights.a_H, state_SHDZ, rows)[decodes:])
    output_THD = parts[0] if len(parts) == 1 else torch.cat(parts)
    return output_THD.addcmul_(read.x_THD, weights.d_H[:, None])


def _read(inputs: DualInputs, weights: DualWeights, spec: DualSpec) -> _Inputs:
    x_TC, b_TC, c_TC = torch.split(
        inputs.xbc_TC.float(), [spec.inner_width, spec.group_width, spec.group_width], dim=-1
    )
    step_TH = F.softplus(inputs.dt_TH.float() + weights.dt_bias_H).clamp(*spec.dt_limit)
    num_tokens, groups = len(x_TC), (spec.num_groups, spec.state_size)
    return _Inputs(
        x_TC.reshape(num_tokens, spec.num_heads, spec.head_dim),
        b_TC.reshape(num_tokens, *groups),
        c_TC.reshape(num_tokens, *groups),
        step_TH,
    )


def _decode(inputs: _Inputs, a_H: Tensor, state_SHDZ: Tensor, rows: StepRows) -> Tensor:
    num_rows, num_heads, _ = inputs.x_THD.shape
    b_BHZ, c_BHZ = (_for_each_head(part, num_heads) for part in (inputs.b_TGZ, inputs.c_TGZ))
    slots_B = rows.slots_B[:num_rows]
    state_BHDZ = begun_states(state_SHDZ, slots_B, rows.first_positions_B[:num_rows])
    state_BHDZ.mul_((inputs.step_TH * a_H).exp()[..., None, None])
    state_BHDZ.addcmul_((inputs.x_THD * inputs.step_TH[..., None])[..., None], b_BHZ[:, :, None])
    state_SHDZ.index_copy_(0, slots_B, state_BHDZ)
    return (c_BHZ[:, :, None] @ state_BHDZ.transpose(-1, -2)).squeeze(2)


def _for_each_head(x_TGZ: Tensor, num_heads: int) -> Tensor:
    return x_TGZ.repeat_interleave(num_heads // x_TGZ.shape[1], dim=1)


def _prefill(inputs: _Inputs, a_H: Tensor, state_SHDZ: Tensor, rows: StepRows) -> Tensor:
    """Outputs of all tokens of the rows that do not decode.

    Within a chunk a token's output is a sum over those before it, weighed as in attention: a product of matrices for
    all chunks at once. Then the chunks of a row follow one another. Every decay is the exponential of a sum that is
    at most 0, so no length can overflow.
    """
    num_tokens, num_heads, _ = inputs.x_THD.shape
    chunks = cut(rows, _CHUNK, inputs.x_THD.device)
    x_YHND = chunks.gather(inputs.x_THD).transpose(1, 2)
    b_YGNZ, c_YGNZ = (chunks.gather(part).transpose(1, 2) for part in (inputs.b_TGZ, inputs.c_TGZ))
    # A repetition neither decays nor adds.
    step_YHN = (chunks.gather(inputs.step_TH) * chunks.is_own_YN[..., None]).transpose(1, 2)
    decay_YHN = step_YHN * a_H[:, None]
    lasting_YHNN = decays(decay_YHN)
    added_YHND = x_YHND * step_YHN[..., None]
    scores_YHNN = _for_each_head(c_YGNZ @ b_YGNZ.transpose(-1, -2), num_heads).mul_(lasting_YHNN)
    output_YHND = scores_YHNN @ added_YHND
    gains_YHDZ = (added_YHND * lasting_YHNN[..., -1, :, None]).transpose(-1, -2) @ _for_each_head(b_YGNZ, num_heads)
    kept_YHN1 = decay_YHN.cumsum(dim=-1).exp()[..., None]
    slots_R = rows.slots_B.index_select(0, chunks.rows_R)
    state_RHDZ = begun_states(state_SHDZ, slots_R, rows.first_positions_B.index_select(0, chunks.rows_R))
    starts_YHDZ = torch.empty_like(gains_YHDZ)
    end = 0
    for count in chunks.counts:
        start, end = end, end + count
        state = state_RHDZ[:count]
        starts_YHDZ[start:end] = state
        state.mul_(kept_YHN1[start:end, :, -1:]).add_(gains_YHDZ[start:end])
    state_SHDZ.index_copy_(0, slots_R, state_RHDZ)
    found_YHND = _for_each_head(c_YGNZ, num_heads) @ starts_YHDZ.transpose(-1, -2)
    output_YHND.addcmul_(found_YHND, kept_YHN1)
    return chunks.scatter(output_YHND.transpose(1, 2), num_tokens)
