"""Device functions that several kernels share, and what a launch needs to know about the compiler."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.runtime import JITFunction

try:
    from triton.language.extra import cuda as nvidia
except ImportError:
    nvidia = None
# Builds for other vendors may lack them; kernels call them for NVIDIA alone.
gdc_wait: Any = getattr(nvidia, "gdc_wait", None)
gdc_launch_dependents: Any = getattr(nvidia, "gdc_launch_dependents", None)

LOG2_E = 1.4426950408889634


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is not below ``number``."""
    return 1 << max(0, number - 1).bit_length()


def launch_options(dependent_launch: bool) -> dict[str, Any]:
    """Options of every launch; only compilers that know dependent launches are told of them."""
    # Said explicitly: the default of fused multiply-adds differs between Triton's versions.
    fused = {"enable_fp_fusion": True}
    return fused | {"launch_pdl": True} if dependent_launch else fused


@triton.jit
def tanh(x):
    """By the exponential, since Triton's own is not the same on all targets."""
    return 2 * tl.sigmoid(2 * x) - 1


INTERPRETED = not isinstance(tanh, JITFunction)
"""Whether kernels run in Triton's interpreter, whose products of bfloat16 are wrong: operands are then widened."""


@triton.jit
def dot(a, b, UPCAST: tl.constexpr):
    """Matrix product in float32; float32 operands are not shortened."""
    if UPCAST:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")
