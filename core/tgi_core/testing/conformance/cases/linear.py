"""Cases of embedding, linears and mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from tgi_core.contract import Kernels
from tgi_core.contract.experts import ExpertWeights, Routed, RoutingSpec, Scoring
from tgi_core.testing.conformance.cases.case import Bench, Case, Outputs, Scope

_ROWS = (1, 2, 17, 64)
_SHAPES = ((96, 64), (40, 256), (130, 100))
"""(outputs, inputs)."""


def embedding(scope: Scope) -> Iterator[Case]:  # noqa: ARG001 - it has no shapes to choose from
    """One row and several, ids of both integer types, the last row of the table."""
    for label, ids in (("one token", [7]), ("several tokens", [0, 99, 5, 5, 31])):
        for dtype in (torch.int32, torch.int64):
            yield Case("embedding", label, partial(_embedding, ids=ids, dtype=dtype), captured=True)


def _embedding(kernels: Kernels, bench: Bench, *, ids: list[int], dtype: torch.dtype) -> Outputs:
    weight_VE = bench.normal(100, 64)
    return {"result": kernels.embedding(bench.tensor(ids, dtype), weight_VE), "weight": weight_VE}


def linear(scope: Scope) -> Iterator[Case]:
    """One row and many, with and without a bias, sizes that fill no tile."""
    for rows, (outputs, inputs), bias in _linears(scope):
        run = partial(_linear, rows=rows, outputs=outputs, inputs=inputs, bias=bias)
        yield Case("linear", _label(rows, outputs, inputs, bias), run, captured=True)


def gated_linear(scope: Scope) -> Iterator[Case]:
    """The same, with an activation between the halves."""
    for activation in ("silu", "gelu_tanh") if scope.quick else ("silu", "gelu", "gelu_tanh", "swiglu_clamped"):
        for rows, (outputs, inputs), bias in _linears(scope):
            run = partial(_gated_linear, rows=rows, outputs=outputs, inputs=inputs, bias=bias, activation=activation)
            yield Case("gated_linear", f"{activation}, {_label(rows, outputs, inputs, bias)}", run, captured=True)


def _linears(scope: Scope) -> Iterator[tuple[int, tuple[int, int], bool]]:
    for rows in _ROWS[::2] if scope.quick else _ROWS:
        for shape in _SHAPES[:1] if scope.quick else _SHAPES:
            for bias in (False, True):
                yield rows, shape, bias


def _label(rows: int, outputs: int, inputs: int, bias: bool) -> str:
    return f"{rows} rows, {inputs} to {outputs}{', bias' if bias else ''}"


def _linear(kernels: Kernels, bench: Bench, *, rows: int, outputs: int, inputs: int, bias: bool) -> Outputs:
    x, weight = bench.normal(rows, inputs), bench.normal(outputs, inputs, scale=inputs**-0.5)
    bias_N = bench.normal(outputs) if bias else None
    return {"result": kernels.linear(x, kernels.pack_linear(weight), bias_N), "x": x}


def _gated_linear(
    kernels: Kernels, bench: Bench, *, rows: int, outputs: int, inputs: int, bias: bool, activation: str
) -> Outputs:
    x, weight = bench.normal(rows, inputs), bench.normal(outputs, inputs, scale=inputs**-0.5)
    bias_N = bench.normal(outputs) if bias else None
    return {"result": kernels.gated_linear(x, kernels.pack_linear(weight), bias_N, activation), "x": x}


ROUTINGS = {
    "softmax": RoutingSpec(top_k=2),
    "softmax, renormalized and scaled": RoutingSpec(top_k=3, renormalize=True, scale=2.5),
    "softmax over the chosen": RoutingSpec(top_k=2, scoring=Scoring.SOFTMAX_CHOSEN),
    "sigmoid": RoutingSpec(top_k=2, scoring=Scoring.SIGMOID, renormalize=True),
    "sigmoid in groups": RoutingSpec(top_k=3, scoring=Scoring.SIGMOID, num_groups=4, top_groups=2, scale=1.5),
    "sparse mixer": RoutingSpec(top_k=2, scoring=Scoring.SPARSE_MIXER, closeness=0.2),
}


def route(scope: Scope) -> Iterator[Case]:  # noqa: ARG001 - it has no shapes to choose from
    """Every way of choosing, with and without a bias on the choice."""
    for label, spec in ROUTINGS.items():
        for tokens in (1, 33):
            for bias in (False, True):
                if bias and spec.scoring in (Scoring.SOFTMAX_CHOSEN, Scoring.SPARSE_MIXER):
                    continue
                run = partial(_route, spec=spec, tokens=tokens, bias=bias)
                text = f"{label}, {tokens} tokens{', bias' if bias else ''}"
                # Logits of the type under test are the same numbers; what follows is float32.
                yield Case("route", text, run, tolerance=1e-5)


def _route(kernels: Kernels, bench: Bench, *, spec: RoutingSpec, tokens: int, bias: bool) -> Outputs:
    # Every expert's logit is another number in any type, so that the choice is never one among equals.
    logits_TX = torch.stack([bench.permutation(16) for _ in range(tokens)]).to(bench.dtype).to(bench.device) / 4 - 2
    bias_X = bench.normal(16, scale=0.1, dtype=torch.float32) if bias else None
    routed = kernels.route(logits_TX, spec, bias_X)
    order_TR = routed.experts_TR.argsort(dim=-1)
    # In which order a token's experts are named does not matter.
    return {
        "experts": routed.experts_TR.gather(1, order_TR).long(),
        "weights": routed.weights_TR.gather(1, order_TR),
    }


def experts(scope: Scope) -> Iterator[Case]:
    """One token and many, experts that nobody chose, all tokens on one expert, no tokens."""
    for activation, bias in (("silu", False), ("swiglu_clamped", True)):
        for tokens in (1, 21) if scope.quick else (1, 2, 21, 100):
            run = partial(_experts, tokens=tokens, activation=activation, bias=bias)
            yield Case("experts", f"{activation}, {tokens} tokens{', bias' if bias else ''}", run)
    yield Case("experts", "all tokens on one expert", partial(_experts, tokens=40, chosen=1))
    yield Case("experts", "no tokens", partial(_experts, tokens=0))


def _experts(
    kernels: Kernels,
    bench: Bench,
    *,
    tokens: int,
    activation: str = "silu",
    bias: bool = False,
    chosen: int | None = None,
) -> Outputs:
    count, hidden, inner = 8, 64, 48
    gate_up = bench.normal(count, 2 * inner, hidden, scale=hidden**-0.5)
    down = bench.normal(count, hidden, inner, scale=inner**-0.5)
    biases = (bench.normal(count, 2 * inner), bench.normal(count, hidden)) if bias else (None, None)
    x = bench.normal(tokens, hidden)
    # The last expert is chosen by nobody.
    wanted = [bench.permutation(count - 1)[:2] for _ in range(tokens)]
    experts_TR = _stacked(wanted) if chosen is None else torch.full((tokens, 1), chosen)
    weights_TR = bench.normal(*experts_TR.shape, mean=0.5, scale=0.1, dtype=torch.float32)
    routed = Routed(weights_TR, experts_TR.to(bench.device))
    weights = ExpertWeights(kernels.pack_experts(gate_up), biases[0], kernels.pack_experts(down), biases[1])
    return {"result": kernels.experts(x, weights, routed, activation)}


def _stacked(rows: list[Tensor]) -> Tensor:
    return torch.stack(rows) if rows else torch.zeros(0, 2, dtype=torch.int64)
