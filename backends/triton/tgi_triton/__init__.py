"""Portable Triton kernels for the contract's operations; a library for backends, not a backend."""

from tgi_triton.kernels import TritonKernels
from tgi_triton.tuning import Tuning, cuda_tuning

__all__ = ["TritonKernels", "Tuning", "cuda_tuning"]
