"""Slots with states: rows of steps, and the plain recurrences that the operations are held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract.states import ConvWeights, DeltaGates, DeltaRuleSpec, StepRows

LENGTHS = [1, 2, 70, 200]
SCRATCH = 6
SLOTS = [3, 0, 5, 2]

Parts = list[tuple[int, int]]
"""The rows of a step: which sequence, how many of its tokens."""

TOGETHER: list[Parts] = [[(0, 1), (1, 2), (2, 70), (3, 200)]]
ALONE: list[Parts] = [[(0, 1)], [(1, 2)], [(2, 70)], [(3, 200)]]
RAGGED: list[Parts] = [
    [(3, 64), (0, 1), (2, 3)],
    [(2, 1), (3, 1), (1, 1)],
    [(2, 1), (1, 1), (3, 66)],
    [(3, 1)],
    [(3, 1), (2, 65)],
    [(3, 67)],
]
schedules = pytest.mark.parametrize("schedule", [TOGETHER, ALONE, RAGGED], ids=["together", "alone", "ragged"])


def step_rows(slots: Sequence[int], firsts: Sequence[int], q_lens: Sequence[int], num_decodes: int = 0) -> StepRows:
    """The rows of a step: their slots, the positions of their first tokens, their numbers of tokens."""
    starts = torch.tensor([0, *q_lens]).cumsum(0)
    return StepRows(torch.tensor(slots), starts, torch.tensor(firsts), list(q_lens), num_decodes, list(slots))


def run(schedule: list[Parts], compute: Callable[[list[slice], Parts, StepRows], Tensor]) -> list[Tensor]:
    """The outputs of each sequence; rows that continue with one token decode, and a row that pads goes with them."""
    done = [0] * len(LENGTHS)
    outputs: list[list[Tensor]] = [[] for _ in LENGTHS]
    for parts in schedule:
        decodes = [(sequence, count) for sequence, count in parts if count == 1 and done[sequence]]
        others = [part for part in parts if part not in decodes]
        ordered = [*decodes, *others]
        slices = [slice(done[sequence], done[sequence] + count) for sequence, count in ordered]
        rows = step_rows(
            [SLOTS[sequence] for sequence, _ in ordered],
            [part.start for part in slices],
            [count for _, count in ordered],
            len(decodes),
        )
        output = compute(slices, ordered, rows)
        for (sequence, count), part in zip(ordered, output.split([count for _, count in ordered]), strict=True):
            outputs[sequence].append(part)
            done[sequence] += count
    assert done == LENGTHS
    return [torch.cat(parts) for parts in outputs]


def pick(sequences: Sequence[Tensor], slices: list[slice], parts: Parts) -> Tensor:
    """The tokens of a step, as columns of something wider."""
    tokens = torch.cat([sequences[sequence][part] for part, (sequence, _) in zip(slices, parts, strict=True)])
    return torch.cat((tokens, tokens), dim=1)[:, : tokens.shape[1]]


def stale(*shape: int) -> Tensor:
    """States that other requests have left: not even numbers."""
    return torch.full(shape, torch.nan)


def convolve(x_TC: Tensor, weights: ConvWeights) -> Tensor:
    """One sequence, token by token."""
    weight_CW = weights.weight_CW.float()
    outputs = []
    for token in range(len(x_TC)):
        output_C = torch.zeros(x_TC.shape[1]) if weights.bias_C is None else weights.bias_C.float()
        for back in range(min(token + 1, weight_CW.shape[1])):
            output_C = output_C + weight_CW[:, -1 - back] * x_TC[token - back].float()
        outputs.append(output_C)
    return torch.stack(outputs)


def apply_delta_rule(qkv_TC: Tensor, gates: DeltaGates, spec: DeltaRuleSpec) -> tuple[Tensor, Tensor]:
    """One sequence, token by token, in float64: outputs [T, H, U] and the last state [H, D, U]."""
    state_HDU = torch.zeros((spec.num_heads, spec.key_dim, spec.value_dim), dtype=torch.float64)
    outputs = []
    for qkv_C, a_H, b_H in zip(qkv_TC.double(), gates.a_TH.double(), gates.b_TH.double(), strict=True):
        q_C, k_C, v_C = qkv_C.split([spec.key_width, spec.key_width, spec.value_width])
        shape = (spec.num_key_heads, spec.key_dim)
        repeats = spec.num_heads // spec.num_key_heads
        q_HD, k_HD = (
            (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(repeats, 0)
            for x in (q_C.view(shape), k_C.view(shape))
        )
        v_HU = v_C.view(spec.num_heads, spec.value_dim)
        forget_H = torch.exp(-gates.a_log_H.double().exp() * F.softplus(a_H + gates.dt_bias_H.double()))
        state_HDU = forget_H[:, None, None] * state_HDU
        error_HU = v_HU - torch.einsum("hd,hdu->hu", k_HD, state_HDU)
        state_HDU = state_HDU + torch.einsum("hd,hu->hdu", k_HD, error_HU * b_H.sigmoid()[:, None])
        outputs.append(torch.einsum("hd,hdu->hu", q_HD * spec.key_dim**-0.5, state_HDU))
    return torch.stack(outputs), state_HDU
