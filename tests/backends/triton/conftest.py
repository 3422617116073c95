"""Triton's kernels on the host: its interpreter stands in for a compiler and a device.

The interpreter is chosen when kernels are decorated, so before anything here imports ``tgi_triton``.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch

from tests.backends.triton.support import SMALL
from tgi_triton import TritonKernels


@pytest.fixture(scope="session")
def kernels() -> TritonKernels:
    """The kernels with tiles so small that every loop runs more than once."""
    return TritonKernels(torch.device("cpu"), SMALL)


@pytest.fixture(params=["float32", "float16", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    value = getattr(torch, request.param)
    assert isinstance(value, torch.dtype)
    return value
