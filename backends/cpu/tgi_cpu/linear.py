"""Dense linears in bfloat16 through oneDNN's prepacked weights.

The private operators ``mkldnn._reorder_linear_weight`` and ``mkldnn._linear_pointwise`` are those that torch's own
compiler emits for CPUs. They sum each row in the same order however many rows there are, but for a lone one: more than
``_ONE_SUM_INPUTS`` inputs of it are summed in another order, so it is computed twice over.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS_HINT = 16
"""Rows that the blocking of packed weights is chosen for; any number may come."""


_LONGEST_UNSPLIT_INPUTS = 1024
"""Above it oneDNN sums a single row in another order than the same row among others."""

_ONE_SUM_INPUTS = 1024
"""Up to so many inputs a lone row is summed like any other."""


class PackedLinear(NamedTuple):
    """A weight in oneDNN's own blocking, an opaque tensor."""

    weight: Tensor


def has_fast_bf16() -> bool:
    """Whether the processor computes in bfloat16 through oneDNN without converting."""
    namespace = torch.ops.mkldnn
    return hasattr(namespace, "_is_mkldnn_bf16_supported") and bool(namespace._is_mkldnn_bf16_supported())


def has_packed_linear() -> bool:
    """Whether this torch has the operators for prepacked weights."""
    namespace = torch.ops.mkldnn
    return (
        torch._C._has_mkldnn
        and hasattr(namespace, "_reorder_linear_weight")
        and hasattr(namespace, "_linear_pointwise")
    )


def pack(weight_NK: Tensor) -> PackedLinear:
    """Reorder a dense bfloat16 weight."""
    return PackedLinear(torch.ops.mkldnn._reorder_linear_weight(weight_NK.contiguous(), _ROWS_HINT))


def linear(x_TK: Tensor, weight: PackedLinear | Tensor, bias_N: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` with a packed or a dense weight."""
    if not isinstance(weight, PackedLinear):
        return F.linear(x_TK, weight, bias_N)
    if len(x_TK) == 1 and x_TK.shape[1] > _ONE_SUM_INPUTS:
        return _packed_linear(x_TK.expand(2, -1), weight, bias_N)[:1]
    return _packed_linear(x_TK, weight, bias_N)


def _packed_linear(x_TK: Tensor, weight: PackedLinear, bias_N: Tensor | None) -> Tensor:
    output_TN: Tensor = torch.ops.mkldnn._linear_pointwise.default(x_TK, weight.weight, bias_N, "none", [], "")
    return output_TN
