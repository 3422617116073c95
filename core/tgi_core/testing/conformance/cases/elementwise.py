"""Cases of norms, activations and the rotary embedding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from tgi_core.contract import Kernels
from tgi_core.reference import ReferenceKernels
from tgi_core.reference.rope import rope as rotate_halves
from tgi_core.testing.conformance.cases.case import Bench, Case, Outputs, Run, Scope

GATED = ("silu", "gelu", "gelu_tanh", "swiglu_clamped")
PLAIN = ("silu", "gelu", "gelu_tanh", "relu", "relu2")
Rotate = Callable[[Tensor, Tensor, Tensor], Tensor]
_SIZES = {"a row": (1, 64), "many rows": (37, 96), "an odd size": (3, 130), "a large size": (2, 4096)}


def _sizes(scope: Scope) -> dict[str, tuple[int, int]]:
    return dict(list(_SIZES.items())[:2]) if scope.quick else _SIZES


def rms_norm(scope: Scope) -> Iterator[Case]:
    """Both offsets, rows and heads that lie apart."""
    for label, (rows, size) in _sizes(scope).items():
        for offset in (0.0, 1.0):
            run = partial(_rms_norm, rows=rows, size=size, offset=offset)
            suspects: dict[str, Run] = {
                "the offset is left out": partial(_rms_norm, rows=rows, size=size, offset=0.0),
                "eps is left out": partial(_rms_norm, rows=rows, size=size, offset=offset, eps=0.0),
            }
            yield Case("rms_norm", f"{label}, offset {offset:g}", run, suspects=suspects, captured=True)
    yield Case("rms_norm", "heads that lie apart", _rms_norm_of_heads, captured=True)


def _rms_norm(kernels: Kernels, bench: Bench, *, rows: int, size: int, offset: float, eps: float = 1e-2) -> Outputs:
    # A large eps: a small one would not show.
    x, weight = bench.normal(rows, size, scale=0.3), bench.normal(size)
    return {"result": kernels.rms_norm(x, weight, eps, offset), "x": x}


def _rms_norm_of_heads(kernels: Kernels, bench: Bench) -> Outputs:
    x_THD, weight_D = bench.normal(3, 6, 16)[:, 1:4], bench.normal(16)
    return {"result": kernels.rms_norm(x_THD, weight_D, 1e-5, 0.0)}


def add_rms_norm(scope: Scope) -> Iterator[Case]:
    """The sum as well as its norm."""
    for label, (rows, size) in _sizes(scope).items():
        for offset in (0.0, 1.0):
            suspects: dict[str, Run] = {
                "the residual is not added": partial(_norm_alone, rows=rows, size=size, offset=offset),
                "the offset is left out": partial(_add_rms_norm, rows=rows, size=size, offset=0.0),
            }
            yield Case(
                "add_rms_norm",
                f"{label}, offset {offset:g}",
                partial(_add_rms_norm, rows=rows, size=size, offset=offset),
                suspects=suspects,
                captured=True,
            )


def _add_rms_norm(kernels: Kernels, bench: Bench, *, rows: int, size: int, offset: float) -> Outputs:
    x, residual, weight = bench.normal(rows, size), bench.normal(rows, size), bench.normal(size)
    normed, residual = kernels.add_rms_norm(x, residual, weight, 1e-5, offset)
    return {"normed": normed, "residual": residual}


def _norm_alone(kernels: Kernels, bench: Bench, *, rows: int, size: int, offset: float) -> Outputs:
    x, _, weight = bench.normal(rows, size), bench.normal(rows, size), bench.normal(size)
    return {"normed": kernels.rms_norm(x, weight, 1e-5, offset), "residual": x}


def layer_norm(scope: Scope) -> Iterator[Case]:
    """With and without a bias; rows far from zero."""
    for label, (rows, size) in _sizes(scope).items():
        for bias in (False, True):
            run = partial(_layer_norm, rows=rows, size=size, bias=bias)
            yield Case("layer_norm", f"{label}{', bias' if bias else ''}", run, captured=True)
    yield Case("layer_norm", "a mean of a hundred times the spread", _layer_norm_far, tolerance=5e-2, captured=True)


def _layer_norm(kernels: Kernels, bench: Bench, *, rows: int, size: int, bias: bool) -> Outputs:
    x, weight = bench.normal(rows, size, mean=0.5), bench.normal(size)
    return {"result": kernels.layer_norm(x, weight, bench.normal(size) if bias else None, 1e-3), "x": x}


def _layer_norm_far(kernels: Kernels, bench: Bench) -> Outputs:
    return {"result": kernels.layer_norm(bench.normal(5, 100, mean=100.0), bench.normal(100), None, 1e-5)}


def activation_mul(scope: Scope) -> Iterator[Case]:
    """Every gated activation."""
    for activation in GATED:
        for label, (rows, size) in _sizes(scope).items():
            run = partial(_activation_mul, rows=rows, size=size, activation=activation)
            suspects = {"the halves are exchanged": partial(run, exchanged=True)}
            yield Case("activation_mul", f"{activation}, {label}", run, suspects=suspects, captured=True)


def _activation_mul(
    kernels: Kernels, bench: Bench, *, rows: int, size: int, activation: str, exchanged: bool = False
) -> Outputs:
    x = bench.normal(rows, 2 * size, scale=4.0)
    if exchanged:
        x = torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1)
    return {"result": kernels.activation_mul(x, activation)}


def activation(scope: Scope) -> Iterator[Case]:
    """Every activation without a gate."""
    for name in PLAIN:
        for label, (rows, size) in _sizes(scope).items():
            run = partial(_activation, rows=rows, size=size, activation=name)
            yield Case("activation", f"{name}, {label}", run, captured=True)


def _activation(kernels: Kernels, bench: Bench, *, rows: int, size: int, activation: str) -> Outputs:
    return {"result": kernels.activation(bench.normal(rows, size, scale=2.0), activation)}


def rope(scope: Scope) -> Iterator[Case]:
    """Whole heads and a part of them, one token and many."""
    for head_dim in scope.head_dims:
        for tokens, half in ((1, head_dim // 2), (19, head_dim // 2), (19, head_dim // 4)):
            run = partial(_rope, tokens=tokens, head_dim=head_dim, half=half)
            part = "whole heads" if 2 * half == head_dim else f"{2 * half} features"
            label = f"heads of {head_dim}, {part}, {tokens} token{'s' if tokens > 1 else ''}"
            yield Case("rope", label, run, suspects=rope_suspects(run), captured=True)


def rope_suspects(run: Run) -> dict[str, Run]:
    """Mistakes in the rotation: what ``run`` gives with kernels that make them."""
    return {
        "adjacent features are rotated together, and not the two halves": _with_rope(run, _rotate_adjacent),
        "the halves are rotated the wrong way round": _with_rope(run, _rotate_back),
        "only the first half of the rotated features is written": _with_rope(run, _rotate_first_half),
        "only the second half of the rotated features is written": _with_rope(run, _rotate_second_half),
        "nothing is rotated": _with_rope(run, _rotate_nothing),
    }


def make_rotary(bench: Bench, tokens: int, half: int) -> tuple[Tensor, Tensor]:
    """cos and sin side by side in one table, as the shard cuts them."""
    angles = torch.rand(tokens, half, generator=torch.Generator().manual_seed(1)) * 6
    table = torch.cat((angles.cos(), angles.sin()), dim=-1).to(bench.device)
    return table[:, :half], table[:, half:]


def _rope(kernels: Kernels, bench: Bench, *, tokens: int, head_dim: int, half: int) -> Outputs:
    return {"result": kernels.rope(bench.normal(tokens, 3, head_dim), *make_rotary(bench, tokens, half))}


def _with_rope(run: Run, rotate: Rotate) -> Run:
    class Mistaken(ReferenceKernels):
        def rope(self, x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
            return rotate(x_THD, cos_TR, sin_TR)

    return lambda _kernels, bench: run(Mistaken(), bench)


def _rotate_adjacent(x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    width = 2 * cos_TR.shape[-1]
    pairs_THR2 = x_THD[..., :width].view(*x_THD.shape[:-1], -1, 2)
    halves_THD = torch.cat((pairs_THR2[..., 0], pairs_THR2[..., 1], x_THD[..., width:]), dim=-1)
    first, second = rotate_halves(halves_THD, cos_TR, sin_TR)[..., :width].chunk(2, dim=-1)
    return torch.cat((torch.stack((first, second), dim=-1).flatten(-2), x_THD[..., width:]), dim=-1)


def _rotate_back(x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    return rotate_halves(x_THD, cos_TR, -sin_TR)


def _rotate_first_half(x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    half = cos_TR.shape[-1]
    return torch.cat((rotate_halves(x_THD, cos_TR, sin_TR)[..., :half], x_THD[..., half:]), dim=-1)


def _rotate_second_half(x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    half = cos_TR.shape[-1]
    return torch.cat((x_THD[..., :half], rotate_halves(x_THD, cos_TR, sin_TR)[..., half:]), dim=-1)


def _rotate_nothing(x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:  # noqa: ARG001 - that is the mistake
    return x_THD
