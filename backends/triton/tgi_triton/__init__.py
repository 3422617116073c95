"""Portable Triton kernels for the contract's operations; a library for backends, not a backend."""

from tgi_triton.kernels import TritonKernels
from tgi_triton.library_prefill import LibraryPrefillKernels, kernels_with
from tgi_triton.tuning import Tuning, cuda_tuning, rocm_tuning, xpu_tuning

__all__ = [
    "LibraryPrefillKernels",
    "TritonKernels",
    "Tuning",
    "cuda_tuning",
    "kernels_with",
    "rocm_tuning",
    "xpu_tuning",
]
