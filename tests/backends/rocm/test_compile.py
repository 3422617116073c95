"""Every launch compiles for every AMD architecture and fits it; no device is needed."""

from __future__ import annotations

import pytest

from tests.backends.triton.compiled import compiled

LOCAL_BYTES = {"gfx90a": 65_536, "gfx942": 65_536, "gfx950": 163_840, "gfx1100": 65_536, "gfx1201": 65_536}
"""Local memory (LDS) of a program."""

QUICK = ("gfx942", "bfloat16", "128, four a key head|sampled, 1 rows|linear, 1 rows|experts, silu, (1|16) rows")
"""What every run of the tests compiles; all the others take minutes."""

ALL_CASES = [(architecture, dtype, "") for architecture in LOCAL_BYTES for dtype in ("bfloat16", "float32")]
ALL_CASES += [(architecture, "float16", "") for architecture in ("gfx942", "gfx1100")]
CASES = [pytest.param(*QUICK, id="a few launches")]
CASES += [pytest.param(*case, marks=pytest.mark.slow) for case in ALL_CASES]

PRODUCTS = {"_decode_kernel", "_prefill_kernel", "_experts_kernel"}

SCRATCH_BYTES = {
    ("gfx1100", "float16"): {"prefill, blocks of 16": 8},
    ("gfx1100", "float32"): {"decode, 256, window": 432, "prefill, 256, window": 420},
    ("gfx1201", "float32"): {"decode, 256, window": 416, "prefill, 256, window": 432},
}
"""The launches that are known to keep registers of a thread in memory. All others must not."""


@pytest.mark.slow
def test_every_kernel_is_compiled() -> None:
    resources = compiled("gfx942", "bfloat16")
    assert {used["kernel"] for used in resources["compiled"]} == set(resources["kernels"])


@pytest.mark.parametrize(("architecture", "dtype", "launches"), CASES)
def test_a_program_fits(architecture: str, dtype: str, launches: str) -> None:
    """Its local memory, and its threads, of which there are at most 1,024."""
    used = compiled(architecture, dtype, launches)["compiled"]
    assert used
    lanes = 64 if architecture.startswith("gfx9") else 32
    assert [entry for entry in used if entry["shared_bytes"] > LOCAL_BYTES[architecture]] == []
    assert [entry for entry in used if entry["warps"] * lanes > 1024] == []


@pytest.mark.parametrize(("architecture", "dtype", "launches"), CASES)
def test_registers_do_not_spill(architecture: str, dtype: str, launches: str) -> None:
    known = SCRATCH_BYTES.get((architecture, dtype), {})
    spilled = {
        entry["launch"]: entry["local_bytes"]
        for entry in compiled(architecture, dtype, launches)["compiled"]
        if entry["local_bytes"] or entry["spilled_registers"]
    }
    assert set(spilled) == set(known)
    assert [launch for launch, size in spilled.items() if size > known[launch]] == []


@pytest.mark.parametrize(("architecture", "dtype", "launches"), [case for case in CASES if case.values[1] != "float32"])
def test_products_use_the_matrix_unit(architecture: str, dtype: str, launches: str) -> None:
    instruction = "v_mfma" if architecture.startswith("gfx9") else "v_wmma"
    products = [entry for entry in compiled(architecture, dtype, launches)["compiled"] if entry["kernel"] in PRODUCTS]
    assert {entry["kernel"] for entry in products} == PRODUCTS
    assert [entry for entry in products if entry["matrix"] != [instruction]] == []
