"""Convolution and delta rule of the reference equal the plain recurrences, however sequences are cut into steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.states import (
    LENGTHS,
    SCRATCH,
    SLOTS,
    Parts,
    apply_delta_rule,
    convolve,
    pick,
    run,
    schedules,
    stale,
    step_rows,
)
from tgi_core.contract.states import ConvWeights, DeltaGates, DeltaRuleSpec, StepRows
from tgi_core.reference import ReferenceKernels

KERNELS = ReferenceKernels()
SPEC = DeltaRuleSpec(num_heads=4, num_key_heads=2, key_dim=8, value_dim=6)


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@schedules
@pytest.mark.parametrize("taps", [2, 4])
@pytest.mark.parametrize("biased", [False, True])
def test_convolution(schedule: list[Parts], taps: int, biased: bool, random: torch.Generator) -> None:
    sequences = [torch.randn((length, 5), generator=random) for length in LENGTHS]
    bias_C = torch.randn(5, generator=random) if biased else None
    weights = ConvWeights(torch.randn((5, taps), generator=random), bias_C)
    state_SJC = stale(SCRATCH + 1, taps - 1, 5)

    def compute(slices: list[slice], parts: Parts, rows: StepRows) -> Tensor:
        return KERNELS.causal_conv(pick(sequences, slices, parts), weights, state_SJC, rows, None)

    for output, sequence, slot in zip(run(schedule, compute), sequences, SLOTS, strict=True):
        torch.testing.assert_close(output, convolve(sequence, weights))
        before = torch.cat((torch.zeros(taps - 1, 5), sequence))
        torch.testing.assert_close(state_SJC[slot], before[len(sequence) :], rtol=0, atol=0)


def test_convolution_of_half_precision_keeps_its_inputs_and_sums_in_float32(random: torch.Generator) -> None:
    x_TC = torch.randn((9, 3), generator=random).bfloat16()
    weights = ConvWeights(torch.randn((3, 4), generator=random).bfloat16())
    state_SJC = torch.zeros((2, 3, 3), dtype=torch.bfloat16)
    rows = step_rows([0], [0], [9])
    output_TC = KERNELS.causal_conv(x_TC, weights, state_SJC, rows, "silu")
    expected_TC = torch.nn.functional.silu(convolve(x_TC, weights)).bfloat16()
    torch.testing.assert_close(output_TC, expected_TC, rtol=0, atol=0)
    assert torch.equal(state_SJC[0], x_TC[-3:])


@schedules
def test_delta_rule(schedule: list[Parts], random: torch.Generator) -> None:
    width = 2 * SPEC.key_width + SPEC.value_width
    sequences = [torch.randn((length, width), generator=random) for length in LENGTHS]
    gates = [torch.randn((length, 2 * SPEC.num_heads), generator=random) for length in LENGTHS]
    a_log_H = torch.tensor([-4.0, -2.0, 0.0, 2.5])
    dt_bias_H = torch.randn(SPEC.num_heads, generator=random)
    state_SHDU = stale(SCRATCH + 1, SPEC.num_heads, SPEC.key_dim, SPEC.value_dim)

    def gates_of(ab_TX: Tensor) -> DeltaGates:
        return DeltaGates(*ab_TX.chunk(2, dim=1), a_log_H, dt_bias_H)

    def compute(slices: list[slice], parts: Parts, rows: StepRows) -> Tensor:
        qkv_TC, ab_TX = pick(sequences, slices, parts), pick(gates, slices, parts)
        return KERNELS.gated_delta_rule(qkv_TC, gates_of(ab_TX), state_SHDU, rows, SPEC)

    for output, sequence, ab_TX, slot in zip(run(schedule, compute), sequences, gates, SLOTS, strict=True):
        expected_THU, state_HDU = apply_delta_rule(sequence, gates_of(ab_TX), SPEC)
        torch.testing.assert_close(output, expected_THU.float(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(state_SHDU[slot], state_HDU.float(), rtol=1e-5, atol=1e-5)


def test_delta_rule_that_hardly_forgets_stays_exact_over_many_chunks(random: torch.Generator) -> None:
    width = 2 * SPEC.key_width + SPEC.value_width
    qkv_TC = torch.randn((1000, width), generator=random)
    # Keys that lie close together make the hardest triangular systems.
    qkv_TC[:, SPEC.key_width : 2 * SPEC.key_width] += 3.0
    ab_TX = torch.randn((1000, 2 * SPEC.num_heads), generator=random)
    gates = DeltaGates(*(ab_TX + 3.0).chunk(2, dim=1), torch.full((4,), -9.0), torch.zeros(4))
    state_SHDU = torch.zeros((2, SPEC.num_heads, SPEC.key_dim, SPEC.value_dim))
    output_THU = KERNELS.gated_delta_rule(qkv_TC, gates, state_SHDU, step_rows([0], [0], [1000]), SPEC)
    expected_THU, _ = apply_delta_rule(qkv_TC, gates, SPEC)
    torch.testing.assert_close(output_THU, expected_THU.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_decodes", [4, 1])
def test_rows_that_pad_change_nothing_for_the_others(num_decodes: int, random: torch.Generator) -> None:
    width = 2 * SPEC.key_width + SPEC.value_width
    qkv_TC = torch.randn((4, width), generator=random)
    gates = DeltaGates(*torch.randn((4, 2 * SPEC.num_heads), generator=random).chunk(2, dim=1), *torch.zeros(2, 4))
    weights = ConvWeights(torch.randn((width, 4), generator=random))
    delta_SHDU = torch.randn((4, SPEC.num_heads, SPEC.key_dim, SPEC.value_dim), generator=random)
    conv_SJC = torch.randn((4, 3, width), generator=random)
    delta_SHDU[3], conv_SJC[3] = torch.nan, torch.nan
    alone = [delta_SHDU.clone(), conv_SJC.clone()]
    padded = [delta_SHDU.clone(), conv_SJC.clone()]
    one = DeltaGates(gates.a_TH[:1], gates.b_TH[:1], *gates[2:])
    rows, row = step_rows([1, 3, 3, 3], [7, 0, 0, 0], [1] * 4, num_decodes), step_rows([1], [7], [1], 1)
    for states, both in ((padded, (qkv_TC, gates, rows)), (alone, (qkv_TC[:1], one, row))):
        x, these, their = both
        states.append(KERNELS.gated_delta_rule(x, these, states[0], their, SPEC)[:1])
        states.append(KERNELS.causal_conv(x, weights, states[1], their, None)[:1])
    for index in (0, 1):
        torch.testing.assert_close(padded[index][:3], alone[index][:3])
    torch.testing.assert_close(padded[2:], alone[2:])
