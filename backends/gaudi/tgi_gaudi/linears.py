"""How linears multiply: in the model's type, or in 8 bits with scales that are found as they go."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract.kernels import PackedWeight


class Linears:
    """Products in the model's type.

    Attributes:
        measures: steps are watched for scales.
    """

    measures = False

    def pack(self, weight_NK: Tensor) -> PackedWeight:
        """See ``Kernels.pack_linear``."""
        return weight_NK

    def apply(self, x_TK: Tensor, weight: PackedWeight, bias_N: Tensor | None) -> Tensor:
        """See ``Kernels.linear``."""
        return F.linear(x_TK, weight, bias_N)

    def finish(self) -> None:
        """All weights are packed, and no step has run."""

    def close(self) -> None:
        """No step runs any more."""


class Fp8Weight(NamedTuple):
    """A weight in 8 bits: e4m3 [N, K], and what each of its rows is to be multiplied with, float32 [N]."""

    weight_NK: Tensor
    scales_N: Tensor


class Fp8Linears(Linears):
    """Products in 8 bits: a scale for each row of the weight, and one for each token, found in the step."""

    def __init__(self) -> None:
        from habana_frameworks.torch.utils import experimental

        is_gaudi2 = experimental._get_device_type() == experimental.synDeviceType.synDeviceGaudi2
        # Gaudi 2 has the type's numbers up to 240 only.
        self._most = torch.finfo(torch.float8_e4m3fnuz if is_gaudi2 else torch.float8_e4m3fn).max

    def pack(self, weight_NK: Tensor) -> PackedWeight:
        weight_8NK, scales_N1 = self._quantize(weight_NK)
        return Fp8Weight(weight_8NK, scales_N1[:, 0].contiguous())

    def apply(self, x_TK: Tensor, weight: PackedWeight, bias_N: Tensor | None) -> Tensor:
        x_8TK, scales_T1 = self._quantize(x_TK)
        product_TN: Tensor = torch.ops.hpu.fp8_gemm_v2(
            A=x_8TK,
            trans_A=False,
            B=weight.weight_NK,
            trans_B=True,
            D=None,
            out_dtype=x_TK.dtype,
            A_scale_inv=scales_T1,
            B_scale_inv=weight.scales_N,
            bias=bias_N,
            accumulate=False,
        )
        return product_TN

    def _quantize(self, x_RK: Tensor) -> tuple[Tensor, Tensor]:
        """Rows in 8 bits, and what they are to be multiplied with: float32 [R, 1]."""
        scales_R1 = (
            x_RK.abs().amax(dim=-1, keepdim=True).float().clamp(min=torch.finfo(torch.float32).tiny) / self._most
        )
        scales_R1 = scales_R1.clamp(min=torch.finfo(torch.float32).tiny)
        x_8RK, _ = torch.ops.hpu.cast_to_fp8_v2(x_RK, scales_R1.reciprocal(), False, False, torch.float8_e4m3fn)
        return x_8RK, scales_R1
