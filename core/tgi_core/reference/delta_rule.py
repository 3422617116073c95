"""The gated delta rule: a step of one token for rows that decode, chunks of tokens for the others."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract.states import DeltaGates, DeltaRuleSpec, StepRows
from tgi_core.reference.chunks import cut, decays
from tgi_core.reference.states import begun_states

_CHUNK = 64
"""Tokens of a chunk: fewer make more steps one after the other, more make larger triangular systems."""


class _Inputs(NamedTuple):
    """What the rule reads, float32; ``forget`` is a logarithm."""

    q_TKD: Tensor
    k_TKD: Tensor
    v_THU: Tensor
    forget_TH: Tensor
    write_TH: Tensor


def gated_delta_rule(
    qkv_TC: Tensor, gates: DeltaGates, state_SHDU: Tensor, rows: StepRows, spec: DeltaRuleSpec
) -> Tensor:
    """Every row's tokens through its slot's state; see ``StateKernels.gated_delta_rule``. Returns float32 [T, H, U]."""
    inputs = _read(qkv_TC, gates, spec)
    decodes = rows.num_decodes
    if decodes == len(qkv_TC):
        return _decode(inputs, state_SHDU, rows)
    output_THU = _prefill(inputs, state_SHDU, rows)
    if decodes:
        output_THU[:decodes] = _decode(_Inputs(*(part[:decodes] for part in inputs)), state_SHDU, rows)
    return output_THU


def _read(qkv_TC: Tensor, gates: DeltaGates, spec: DeltaRuleSpec) -> _Inputs:
    qk_TC, v_TC = torch.split(qkv_TC.float(), [2 * spec.key_width, spec.value_width], dim=-1)
    qk_TXD = qk_TC.reshape(len(qk_TC), 2 * spec.num_key_heads, spec.key_dim)
    qk_TXD = qk_TXD * torch.rsqrt(qk_TXD.square().sum(dim=-1, keepdim=True) + 1e-6)
    q_TKD, k_TKD = qk_TXD.chunk(2, dim=1)
    forget_TH = -gates.a_log_H.exp() * F.softplus(gates.a_TH.float() + gates.dt_bias_H)
    v_THU = v_TC.reshape(len(v_TC), spec.num_heads, spec.value_dim)
    return _Inputs(q_TKD * spec.key_dim**-0.5, k_TKD, v_THU, forget_TH, gates.b_TH.float().sigmoid())


def _decode(inputs: _Inputs, state_SHDU: Tensor, rows: StepRows) -> Tensor:
    num_rows, num_heads, _ = inputs.v_THU.shape
    q_BHD, k_BHD = (_for_each_head(part, num_heads) for part in (inputs.q_TKD, inputs.k_TKD))
    slots_B = rows.slots_B[:num_rows]
    state_BHDU = begun_states(state_SHDU, slots_B, rows.first_positions_B[:num_rows])
    forget_BH11 = inputs.forget_TH.exp()[..., None, None]
    # Read once, before it changes: what queries then find is known from what they and the keys find now.
    found_BH2U = torch.stack((q_BHD, k_BHD), dim=2) @ state_BHDU * forget_BH11
    change_BHU = (inputs.v_THU - found_BH2U[:, :, 1]) * inputs.write_TH[..., None]
    state_BHDU.mul_(forget_BH11).addcmul_(k_BHD[..., None], change_BHU[:, :, None])
    state_SHDU.index_copy_(0, slots_B, state_BHDU)
    return found_BH2U[:, :, 0] + (q_BHD * k_BHD).sum(dim=-1, keepdim=True) * change_BHU


def _for_each_head(x: Tensor, num_heads: int) -> Tensor:
    """Queries or keys [..., K, D] as the heads that they serve see them, [..., H, D]."""
    *leading, key_heads, size = x.shape
    return x[..., None, :].expand(*leading, key_heads, num_heads // key_heads, size).flatten(-3, -2)


def _prefill(inputs: _Inputs, state_SHDU: Tensor, rows: StepRows) -> Tensor:
    """Outputs of all tokens, those of rows that decode left out: anything stands there.

    Within a chunk what each token writes depends on what those before it have written: a triangular system, solved for
    all chunks at once. Then the chunks of a row follow one another.
    """
    num_tokens, num_heads, _ = inputs.v_THU.shape
    chunks = cut(rows, _CHUNK, inputs.v_THU.device)
    picked = _Inputs(*map(chunks.gather, inputs))
    q_YHND, k_YHND = (_for_each_head(part, num_heads).transpose(1, 2) for part in (picked.q_TKD, picked.k_TKD))
    v_YHNU = picked.v_THU.transpose(1, 2)
    forget_YHN, write_YHN = (
        (part * chunks.is_own_YN[..., None]).transpose(1, 2) for part in (picked.forget_TH, picked.write_TH)
    )
    lasting_YHNN = decays(forget_YHN)
    kept_YHN1 = forget_YHN.cumsum(dim=-1).exp()[..., None]
    write_YHN1 = write_YHN[..., None]
    keys_YHDN = k_YHND.transpose(-1, -2)
    system_YHNN = k_YHND @ keys_YHDN * lasting_YHNN * write_YHN1
    # Both right sides at once: what is written were the state empty, and how the state diminishes that.
    wanted_YHNX = torch.cat((v_YHNU, k_YHND * kept_YHN1), dim=-1) * write_YHN1
    solved_YHNX = torch.linalg.solve_triangular(system_YHNN, wanted_YHNX, upper=False, unitriangular=True)
    values_YHNU, keys_YHND = torch.split(solved_YHNX, [v_YHNU.shape[-1], k_YHND.shape[-1]], dim=-1)
    scores_YHNN = q_YHND @ keys_YHDN * lasting_YHNN
    q_YHND = q_YHND * kept_YHN1
    keys_YHDN = keys_YHDN * lasting_YHNN[..., -1:, :]
    slots_R = rows.slots_B.index_select(0, chunks.rows_R)
    state_RHDU = begun_states(state_SHDU, slots_R, rows.first_positions_B.index_select(0, chunks.rows_R))
    output_YHNU = torch.empty_like(values_YHNU)
    end = 0
    for count in chunks.counts:
        start, end = end, end + count
        part = slice(start, end)
        state = state_RHDU[:count]
        change = values_YHNU[part] - keys_YHND[part] @ state
        output_YHNU[part] = q_YHND[part] @ state + scores_YHNN[part] @ change
        state.mul_(kept_YHN1[part, :, -1:]).add_(keys_YHDN[part] @ change)
    state_SHDU.index_copy_(0, slots_R, state_RHDU)
    return chunks.scatter(output_YHNU.transpose(1, 2), num_tokens)
