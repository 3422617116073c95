"""Cases of layers that keep a state of each slot."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import Kernels
from tgi_core.contract.states import (
    ConvWeights,
    DeltaGates,
    DeltaRuleSpec,
    DualInputs,
    DualSpec,
    DualWeights,
    ScanInputs,
    ScanWeights,
    StepRows,
)
from tgi_core.testing.conformance.cases.case import Bench, Case, Outputs, Run, Scope

_SLOTS = 6
"""The scratch slot is the last."""

_STALE = 1e4
"""What other requests have left in a slot whose row begins."""


class _Rows(NamedTuple):
    """(slot, q_len, first position) of each row, decodes first."""

    rows: tuple[tuple[int, int, int], ...]

    def make(self, bench: Bench) -> StepRows:
        slots = [slot for slot, _, _ in self.rows]
        q_lens = [q_len for _, q_len, _ in self.rows]
        return StepRows(
            slots_B=bench.tensor(slots, torch.int64),
            q_starts_B=bench.tensor([0, *accumulate(q_lens)], torch.int64),
            first_positions_B=bench.tensor([first for _, _, first in self.rows], torch.int64),
            q_lens=q_lens,
            num_decodes=next((row for row, q_len in enumerate(q_lens) if q_len > 1), len(q_lens)),
            slots=slots,
        )

    @property
    def num_tokens(self) -> int:
        return sum(q_len for _, q_len, _ in self.rows)

    def make_state(self, bench: Bench, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """States of all slots; those whose rows begin hold what somebody left."""
        state = bench.normal(_SLOTS + 1, *shape, scale=0.5, dtype=dtype)
        for slot, _, first in self.rows:
            if first == 0:
                state[slot] = _STALE
        return state


_STEPS = {
    "a first token": _Rows(((2, 1, 0),)),
    "decodes": _Rows(((4, 1, 9), (0, 1, 1), (5, 1, 70))),
    "decodes and rows that pad": _Rows(((4, 1, 9), (1, 1, 3), (_SLOTS, 1, 1), (_SLOTS, 1, 1))),
    "a prompt": _Rows(((3, 70, 0),)),
    "decodes and chunks": _Rows(((5, 1, 12), (1, 1, 0), (0, 2, 5), (4, 33, 0), (2, 67, 64))),
}


def _cases(operation: str, run: partial[Outputs], scope: Scope) -> Iterator[Case]:
    for label in ("decodes", "decodes and chunks") if scope.quick else _STEPS:
        rows = _STEPS[label]
        found: dict[str, Run] = {}
        if any(first == 0 for _, _, first in rows.rows):
            found["what another request has left in the slot is read"] = partial(run, rows=rows, begin_stale=True)
        decodes = all(q_len == 1 for _, q_len, _ in rows.rows)
        yield Case(operation, label, partial(run, rows=rows), suspects=found, captured=decodes)


def _kept(state: Tensor) -> Tensor:
    """States but the scratch slot's, which mean nothing."""
    return state[:-1]


def _step_rows(bench: Bench, rows: _Rows, begin_stale: bool) -> StepRows:
    made = rows.make(bench)
    return made._replace(first_positions_B=made.first_positions_B + 1) if begin_stale else made


def causal_conv(scope: Scope) -> Iterator[Case]:
    """Short and longer filters, with and without bias and activation."""
    for taps, bias, activation in ((4, True, "silu"), (4, False, "silu"), (2, True, None), (3, False, None)):
        run = partial(_causal_conv, taps=taps, bias=bias, activation=activation)
        for case in _cases("causal_conv", run, scope):
            text = f"{taps} taps{', bias' if bias else ''}, {activation or 'no activation'}, {case.label}"
            yield case._replace(label=text)


def _causal_conv(
    kernels: Kernels,
    bench: Bench,
    *,
    rows: _Rows,
    taps: int,
    bias: bool,
    activation: str | None,
    begin_stale: bool = False,
) -> Outputs:
    channels = 48
    # Columns of something wider, as a merged projection gives them.
    x_TC = bench.normal(rows.num_tokens, channels + 16)[:, 8 : 8 + channels]
    weights = ConvWeights(bench.normal(channels, taps), bench.normal(channels) if bias else None)
    state = rows.make_state(bench, taps - 1, channels)
    result = kernels.causal_conv(x_TC, weights, state, _step_rows(bench, rows, begin_stale), activation)
    return {"result": result, "states": _kept(state)}


def gated_delta_rule(scope: Scope) -> Iterator[Case]:
    """Heads that share keys, and sizes that differ."""
    for spec in (
        DeltaRuleSpec(num_heads=4, num_key_heads=2, key_dim=16, value_dim=16),
        DeltaRuleSpec(num_heads=2, num_key_heads=2, key_dim=32, value_dim=64),
    ):
        for case in _cases("gated_delta_rule", partial(_gated_delta_rule, spec=spec), scope):
            sizes = f"{spec.num_heads} heads over {spec.num_key_heads}, {spec.key_dim} by {spec.value_dim}"
            yield case._replace(label=f"{sizes}, {case.label}")


def _gated_delta_rule(
    kernels: Kernels, bench: Bench, *, rows: _Rows, spec: DeltaRuleSpec, begin_stale: bool = False
) -> Outputs:
    qkv_TC = bench.normal(rows.num_tokens, 2 * spec.key_width + spec.value_width)
    gates = DeltaGates(
        bench.normal(rows.num_tokens, spec.num_heads),
        bench.normal(rows.num_tokens, spec.num_heads),
        bench.normal(spec.num_heads, dtype=torch.float32),
        bench.normal(spec.num_heads, dtype=torch.float32),
    )
    state = rows.make_state(bench, spec.num_heads, spec.key_dim, spec.value_dim, dtype=torch.float32)
    result = kernels.gated_delta_rule(qkv_TC, gates, state, _step_rows(bench, rows, begin_stale), spec)
    return {"result": result, "states": _kept(state)}


def selective_scan(scope: Scope) -> Iterator[Case]:
    """Inputs that are columns of something wider."""
    yield from _cases("selective_scan", partial(_selective_scan, channels=48, size=16), scope)


def _selective_scan(
    kernels: Kernels, bench: Bench, *, rows: _Rows, channels: int, size: int, begin_stale: bool = False
) -> Outputs:
    tokens = rows.num_tokens
    x_TX = bench.normal(tokens, 2 * channels)
    inputs = ScanInputs(
        x_TX[:, :channels],
        bench.normal(tokens, channels),
        bench.normal(tokens, size),
        bench.normal(tokens, size),
        x_TX[:, channels:],
    )
    weights = ScanWeights(
        -bench.normal(channels, size, dtype=torch.float32).exp(),
        bench.normal(channels, dtype=torch.float32),
        bench.normal(channels, dtype=torch.float32),
    )
    state = rows.make_state(bench, channels, size, dtype=torch.float32)
    result = kernels.selective_scan(inputs, weights, state, _step_rows(bench, rows, begin_stale))
    return {"result": result, "states": _kept(state)}


def state_space_dual(scope: Scope) -> Iterator[Case]:
    """Heads in groups, and a limit on the step."""
    for limit in ((0.0, float("inf")), (0.1, 1.5)):
        spec = DualSpec(num_heads=4, head_dim=16, num_groups=2, state_size=32, dt_limit=limit)
        for case in _cases("state_space_dual", partial(_state_space_dual, spec=spec), scope):
            yield case._replace(label=f"steps from {limit[0]:g} to {limit[1]:g}, {case.label}")


def _state_space_dual(
    kernels: Kernels, bench: Bench, *, rows: _Rows, spec: DualSpec, begin_stale: bool = False
) -> Outputs:
    xbc_TC = bench.normal(rows.num_tokens, spec.inner_width + 2 * spec.group_width)
    dt_TH = bench.normal(rows.num_tokens, spec.num_heads)
    weights = DualWeights(
        -bench.normal(spec.num_heads, dtype=torch.float32).exp(),
        bench.normal(spec.num_heads, dtype=torch.float32),
        bench.normal(spec.num_heads, dtype=torch.float32),
    )
    state = rows.make_state(bench, spec.num_heads, spec.head_dim, spec.state_size, dtype=torch.float32)
    result = kernels.state_space_dual(
        DualInputs(xbc_TC, dt_TH), weights, state, _step_rows(bench, rows, begin_stale), spec
    )
    return {"result": result, "states": _kept(state)}
