"""Every kernel of the contract in plain torch: its meaning, the fallback of every backend, the oracle of the tests."""

from tgi_core.reference.kernels import ReferenceKernels

__all__ = ["ReferenceKernels"]
