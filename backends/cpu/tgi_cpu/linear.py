"""Dense linears in bfloat16 through oneDNN's prepacked weights.

The private operators ``mkldnn._reorder_linear_weight`` and ``mkldnn._linear_pointwise`` are those that torch's own
compiler emits for CPUs. Results equal ``F.linear`` bit for bit and a row's do not depend on how many rows there are.
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
    if isinstance(weight, PackedLinear):
        if len(x_TK) == 1 and x_TK.shape[1] > _LONGEST_UNSPLIT_INPUTS:
            return linear(x_TK.repeat(2, 1), weight, bias_N)[:1]
        output_TN: Tensor = torch.ops.mkldnn._linear_pointwise.default(x_TK, weight.weight, bias_N, "none", [], "")
        return output_TN
    return F.linear(x_TK, weight, bias_N)
