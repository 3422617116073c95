"""Forbids the tokens that a packed mask does not name."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from tgi_triton.device_code import launch_options

_BLOCK = 4096


@triton.jit(do_not_specialize=["vocab_size", "num_words"])
def _bitmask_kernel(logits_ptr, rows_ptr, masks_ptr, row_stride, num_words, vocab_size, BLOCK: tl.constexpr):
    mask = tl.program_id(1).to(tl.int64)
    row = tl.load(rows_ptr + mask)
    ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab_size
    words = tl.load(masks_ptr + mask * num_words + ids // 32, mask=inside, other=0)
    forbidden = ((words >> (ids % 32)) & 1) == 0
    tl.store(logits_ptr + row * row_stride + ids, float("-inf"), mask=inside & forbidden)


def apply_bitmask(logits_BV: Tensor, rows_R: Tensor, masks_RW: Tensor) -> Tensor:
    """See ``Kernels.apply_bitmask``; writes into ``logits``."""
    vocab_size = logits_BV.shape[-1]
    _bitmask_kernel[(triton.cdiv(vocab_size, _BLOCK), len(rows_R))](
        logits_BV,
        rows_R,
        masks_RW,
        logits_BV.stride(0),
        masks_RW.stride(0),
        vocab_size,
        BLOCK=_BLOCK,
        num_warps=8,
        **launch_options(False),
    )
    return logits_BV
