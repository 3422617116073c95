"""The recurrences of state space models equal the plain ones, however sequences are cut into steps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from tests.support.state_space import dual, scan
from tests.support.states import LENGTHS, SCRATCH, SLOTS, Parts, pick, run, schedules, stale, step_rows
from tgi_core.contract.states import DualInputs, DualSpec, DualWeights, ScanInputs, ScanWeights, StepRows
from tgi_core.reference import ReferenceKernels, selective_scan

KERNELS = ReferenceKernels()
CHANNELS, SIZE = 6, 4
WIDTHS = [CHANNELS, CHANNELS, SIZE, SIZE, CHANNELS]
GROUPED = DualSpec(num_heads=4, head_dim=3, num_groups=2, state_size=5, dt_limit=(0.05, 1.5))
UNLIMITED = DualSpec(num_heads=2, head_dim=3, num_groups=1, state_size=5, dt_limit=(0.0, math.inf))


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(params=[1, 30, 2 << 20], ids=["token by token", "small pieces", "one piece"])
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece holds one token, some, all: 30 are those of chunks of 5."""
    monkeypatch.setattr(selective_scan, "_CACHE_BYTES", 4 * CHANNELS * SIZE * request.param)


def scan_weights(random: torch.Generator) -> ScanWeights:
    a_CZ = -torch.tensor([0.001, 1.0, 16.0, 300.0]).repeat(CHANNELS, 1)
    return ScanWeights(a_CZ, *torch.randn((2, CHANNELS), generator=random))


def scan_inputs(columns_TX: Tensor) -> ScanInputs:
    return ScanInputs(*columns_TX.split(WIDTHS, dim=1))


@schedules
@pytest.mark.usefixtures("piece_bytes")
def test_selective_scan(schedule: list[Parts], random: torch.Generator) -> None:
    sequences = [torch.randn((length, sum(WIDTHS)), generator=random) for length in LENGTHS]
    weights, state_SCZ = scan_weights(random), stale(SCRATCH + 1, CHANNELS, SIZE)

    def compute(slices: list[slice], parts: Parts, rows: StepRows) -> Tensor:
        return KERNELS.selective_scan(scan_inputs(pick(sequences, slices, parts)), weights, state_SCZ, rows)

    for output_TC, sequence, slot in zip(run(schedule, compute), sequences, SLOTS, strict=True):
        expected_TC, state_CZ = scan(scan_inputs(sequence), weights)
        torch.testing.assert_close(output_TC, expected_TC.float(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(state_SCZ[slot], state_CZ.float(), rtol=1e-5, atol=1e-5)


def dual_weights(spec: DualSpec, random: torch.Generator) -> DualWeights:
    a_H = -torch.tensor([0.001, 1.0, 16.0, 300.0])[: spec.num_heads]
    return DualWeights(a_H, *torch.randn((2, spec.num_heads), generator=random))


def dual_inputs(columns_TX: Tensor, spec: DualSpec) -> DualInputs:
    return DualInputs(columns_TX[:, : -spec.num_heads], columns_TX[:, -spec.num_heads :])


def dual_width(spec: DualSpec) -> int:
    return spec.inner_width + 2 * spec.group_width + spec.num_heads


@schedules
@pytest.mark.parametrize("spec", [GROUPED, UNLIMITED], ids=["groups", "one group"])
def test_state_space_dual(schedule: list[Parts], spec: DualSpec, random: torch.Generator) -> None:
    sequences = [torch.randn((length, dual_width(spec)), generator=random) for length in LENGTHS]
    weights = dual_weights(spec, random)
    state_SHDZ = stale(SCRATCH + 1, spec.num_heads, spec.head_dim, spec.state_size)

    def compute(slices: list[slice], parts: Parts, rows: StepRows) -> Tensor:
        return KERNELS.state_space_dual(
            dual_inputs(pick(sequences, slices, parts), spec), weights, state_SHDZ, rows, spec
        )

    for output_THD, sequence, slot in zip(run(schedule, compute), sequences, SLOTS, strict=True):
        expected_THD, state_HDZ = dual(dual_inputs(sequence, spec), weights, spec)
        torch.testing.assert_close(output_THD, expected_THD.float(), rtol=1e-5, atol=3e-5)
        torch.testing.assert_close(state_SHDZ[slot], state_HDZ.float(), rtol=1e-5, atol=3e-5)


def test_long_sequences_neither_overflow_nor_drift(random: torch.Generator) -> None:
    weights = scan_weights(random)
    columns_TX = torch.randn((2000, sum(WIDTHS)), generator=random)
    columns_TX[:, CHANNELS : 2 * CHANNELS] += 5.0
    rows, state_SCZ = step_rows([0], [0], [2000]), torch.zeros(2, CHANNELS, SIZE)
    output_TC = KERNELS.selective_scan(scan_inputs(columns_TX), weights, state_SCZ, rows)
    expected_TC = scan(scan_inputs(columns_TX), weights)[0].float()
    torch.testing.assert_close(output_TC, expected_TC, rtol=1e-4, atol=1e-3)

    dual_of_heads, state_SHDZ = dual_weights(GROUPED, random), torch.zeros(2, 4, 3, 5)
    columns_TX = torch.randn((2000, dual_width(GROUPED)), generator=random) + 1.0
    inputs = dual_inputs(columns_TX, GROUPED)
    output_THD = KERNELS.state_space_dual(inputs, dual_of_heads, state_SHDZ, rows, GROUPED)
    torch.testing.assert_close(output_THD, dual(inputs, dual_of_heads, GROUPED)[0].float(), rtol=1e-4, atol=1e-3)


def test_tokens_between_which_all_is_forgotten_round_nothing_behind_them(random: torch.Generator) -> None:
    weights = dual_weights(UNLIMITED, random)._replace(a_H=torch.tensor([-16.0, -300.0]))
    columns_TX = torch.randn((300, dual_width(UNLIMITED)), generator=random)
    columns_TX[:, -UNLIMITED.num_heads :] *= 10.0
    inputs, state_SHDZ = dual_inputs(columns_TX, UNLIMITED), torch.zeros(2, 2, 3, 5)
    output_THD = KERNELS.state_space_dual(inputs, weights, state_SHDZ, step_rows([0], [0], [300]), UNLIMITED)
    torch.testing.assert_close(output_THD, dual(inputs, weights, UNLIMITED)[0].float(), rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("num_decodes", [4, 1])
def test_rows_that_pad_change_nothing_for_the_others(num_decodes: int, random: torch.Generator) -> None:
    rows, row = step_rows([1, 3, 3, 3], [7, 0, 0, 0], [1] * 4, num_decodes), step_rows([1], [7], [1], 1)
    state_SCZ, weights = torch.randn((4, CHANNELS, SIZE), generator=random), scan_weights(random)
    state_SHDZ, heads = torch.randn((4, 4, 3, 5), generator=random), dual_weights(GROUPED, random)
    scanned_TX = torch.randn((4, sum(WIDTHS)), generator=random)
    mixed_TX = torch.randn((4, dual_width(GROUPED)), generator=random)
    found = []
    for their, count in ((rows, 4), (row, 1)):
        states = state_SCZ.clone(), state_SHDZ.clone()
        output_TC = KERNELS.selective_scan(scan_inputs(scanned_TX[:count]), weights, states[0], their)
        inputs = dual_inputs(mixed_TX[:count], GROUPED)
        output_THD = KERNELS.state_space_dual(inputs, heads, states[1], their, GROUPED)
        found.append([output_TC[:1], output_THD[:1], *(state[:3] for state in states)])
    torch.testing.assert_close(*found)


def test_decodes_ask_for_no_values() -> None:
    with FakeTensorMode():
        rows = StepRows(torch.zeros(4).long(), torch.arange(5), torch.zeros(4).long(), [1] * 4, 4, slots=())
        weights = ScanWeights(torch.zeros(CHANNELS, SIZE), torch.zeros(CHANNELS), torch.zeros(CHANNELS))
        inputs = scan_inputs(torch.zeros(4, sum(WIDTHS)))
        KERNELS.selective_scan(inputs, weights, torch.zeros(SCRATCH + 1, CHANNELS, SIZE), rows)
        heads = DualWeights(*torch.zeros(3, GROUPED.num_heads))
        both = dual_inputs(torch.zeros(4, dual_width(GROUPED)), GROUPED)
        KERNELS.state_space_dual(both, heads, torch.zeros(SCRATCH + 1, 4, 3, 5), rows, GROUPED)
        with pytest.raises(DataDependentOutputException):
            rows.slots_B.tolist()


def test_half_precision_is_computed_in_float32(random: torch.Generator) -> None:
    columns_TX, weights = torch.randn((40, sum(WIDTHS)), generator=random).bfloat16(), scan_weights(random)
    rows, state_SCZ = step_rows([0], [0], [40]), torch.zeros(2, CHANNELS, SIZE)
    output_TC = KERNELS.selective_scan(scan_inputs(columns_TX), weights, state_SCZ, rows)
    expected_TC, state_CZ = scan(scan_inputs(columns_TX), weights)
    torch.testing.assert_close(output_TC, expected_TC.bfloat16(), rtol=0.008, atol=0)
    torch.testing.assert_close(state_SCZ[0], state_CZ.float(), rtol=1e-5, atol=1e-5)
