"""Quantized weights back into numbers, a few rows at a time so that what is between stays small.

Sources: Micikevicius et al. 2022 for 8-bit floats; the OCP Microscaling Formats specification 1.0 for 4-bit floats
(E2M1) that share a scale (E8M0) in blocks of 32.
"""

from __future__ import annotations

import torch
from torch import Tensor

MXFP4_BLOCK = 32
"""Numbers that share a scale."""

MXFP4_BLOCK_BYTES = MXFP4_BLOCK // 2

_BUFFER_VALUES = 1 << 18
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Dequantizer:
    """Makes weights of one dtype.

    Keeps its buffers: freed between allocations that stay, their memory would be cut up and stay with the process.

    Args:
        dtype: of what is returned.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._product = torch.empty(_BUFFER_VALUES)
        self._bytes = torch.empty(_BUFFER_VALUES // 2, dtype=torch.int32)
        values = torch.tensor([*_E2M1, *(-value for value in _E2M1)])
        self._values_of_byte = torch.stack((values.repeat(16), values.repeat_interleave(16)), dim=-1)

    def fp8(self, weight: Tensor, scale: Tensor, block: tuple[int, int] | None = None) -> Tensor:
        """``weight`` times ``scale``, computed in float32.

        Args:
            weight: 8-bit floats, [..., N, K].
            scale: numbers of any float type. With ``block`` [..., ceil(N / rows), ceil(K / columns)]: the last block of
                an axis may be cut off. Otherwise of as many axes, each as long as the weight's or 1.
            block: rows and columns that share a scale.
        """
        *leading, rows, columns = weight.shape
        out = torch.empty(weight.shape, dtype=self._dtype)
        if block is None:
            scales_XNK = scale.float().expand(*leading, rows, scale.shape[-1])
        else:
            scales_XNK = scale.float().repeat_interleave(block[1], dim=-1)[..., :columns]
        scales_XNK = scales_XNK.reshape(-1, *scales_XNK.shape[-2:])
        step = max(1, _BUFFER_VALUES // columns)
        if block is not None:
            step = min(step, block[0])
        weights_XNK, out_XNK = weight.reshape(-1, rows, columns), out.view(-1, rows, columns)
        for weight_NK, scale_NK, out_NK in zip(weights_XNK, scales_XNK, out_XNK, strict=True):
            start = 0
            while start < rows:
                end = min(start + step, rows)
                if block is not None:
                    end = min(end, start - start % block[0] + block[0])
                product = self._product[: (end - start) * columns].view(-1, columns).copy_(weight_NK[start:end])
                product.mul_(scale_NK[start:end] if block is None else scale_NK[start // block[0]])
                out_NK[start:end] = product
                start = end
        return out

    def mxfp4(self, blocks: Tensor, scales: Tensor) -> Tensor:
        """4-bit floats times their scales.

        Args:
            blocks: uint8 [..., G, 16], two numbers a byte, the low half first.
            scales: uint8 [..., G], exponents of two with a bias of 127.

        Returns:
            [..., G * 32].
        """
        *leading, groups, _ = blocks.shape
        out = torch.empty((*leading, groups * MXFP4_BLOCK), dtype=self._dtype)
        bytes_M, scales_G = blocks.reshape(-1), scales.reshape(-1).view(torch.float8_e8m0fnu)
        out_GV = out.view(-1, MXFP4_BLOCK)
        step = _BUFFER_VALUES // MXFP4_BLOCK
        for start in range(0, len(out_GV), step):
            end = min(start + step, len(out_GV))
            part_M = bytes_M[start * MXFP4_BLOCK_BYTES : end * MXFP4_BLOCK_BYTES]
            index_M = self._bytes[: len(part_M)].copy_(part_M)
            product = self._product[: 2 * len(part_M)]
            torch.index_select(self._values_of_byte, 0, index_M, out=product.view(-1, 2))
            out_GV[start:end] = product.view(-1, MXFP4_BLOCK).mul_(scales_G[start:end].float()[:, None])
        return out
