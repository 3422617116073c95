"""Every launch compiles to SPIR-V, with the matrix unit's instruction; run by ``make test-xpu`` only.

Needs triton-xpu, which is called ``triton`` too and so lives in an environment of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from typing import Any

import pytest

LOCAL_BYTES = 128 << 10
"""Shared local memory of an Xe core of both architectures: Data Center GPU Max ("pvc") and Arc B ("bmg")."""

CASES = [("pvc", "bfloat16"), ("bmg", "bfloat16"), ("pvc", "float16"), ("pvc", "float32")]
PRODUCTS = {"_decode_kernel", "_prefill_kernel", "_experts_kernel"}


@cache
def compiled(architecture: str, dtype: str) -> dict[str, Any]:
    """What ``compile_kernels`` prints, once for all tests."""
    with tempfile.TemporaryDirectory() as cache_dir:
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        environment["TRITON_CACHE_DIR"] = cache_dir
        command = [sys.executable, "-m", "tests.backends.xpu.compile_kernels", architecture, dtype]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    resources: dict[str, Any] = json.loads(run.stdout)
    return resources


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("architecture", "dtype"), CASES)
def test_every_kernel_becomes_spirv_that_fits(architecture: str, dtype: str) -> None:
    resources = compiled(architecture, dtype)
    # Attention over a latent cache stays with the reference there.
    assert {entry["kernel"] for entry in resources["compiled"]} == set(resources["kernels"]) - {"_latent_kernel"}
    assert {entry["magic"] for entry in resources["compiled"]} == {"03022307"}
    assert [entry for entry in resources["compiled"] if entry["shared_bytes"] > LOCAL_BYTES] == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("architecture", "dtype"), CASES)
def test_products_of_short_types_use_the_matrix_unit(architecture: str, dtype: str) -> None:
    """float32 keeps all its bits, for which there is no such instruction."""
    products = [entry for entry in compiled(architecture, dtype)["compiled"] if entry["kernel"] in PRODUCTS]
    assert {entry["kernel"] for entry in products} == PRODUCTS
    assert [entry for entry in products if entry["matrix"] is (dtype == "float32")] == []
