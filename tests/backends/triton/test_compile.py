"""Every launch compiles for every NVIDIA architecture and fits it; no device is needed."""

from __future__ import annotations

import pytest

from tests.backends.triton.compiled import compiled

SHARED_BYTES = {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448}
QUICK = (
    90,
    "bfloat16",
    "128, four a key head|256, window|latent decode, 16|experts, silu, (1|16|512) rows|, 1 rows|4096$|rope, 128|tanh"
    "|bitmask|tables",
)
"""What every run of the tests compiles: each kernel at one size, attention at two; all the others take minutes."""

ALL_CASES = [(capability, dtype, "") for capability in SHARED_BYTES for dtype in ("bfloat16", "float32")]
ALL_CASES += [(89, "float16", "")]
CASES = [pytest.param(*QUICK, id="a few launches")]
CASES += [pytest.param(*case, marks=pytest.mark.slow) for case in ALL_CASES]

MATRIX_INSTRUCTIONS = {
    "_prefill_kernel": {80: "mma.sync", 89: "mma.sync", 90: "wgmma", 100: "tcgen05.mma"},
    # Tiles of 16 rows, fewer than the warp groups of Hopper and newer multiply.
    "_decode_kernel": dict.fromkeys(SHARED_BYTES, "mma.sync"),
    # Few pairs are the right operand there, many the left one.
    "_experts_kernel": {90: "wgmma"},
}
"""What multiplies 16-bit types; float32 keeps all its bits and has no such instruction."""

LOCAL_BYTES = {
    ("_prefill_kernel", "bfloat16"): {80: 560, 89: 8, 90: 352, 100: 496},
    ("_prefill_kernel", "float32"): {80: 88, 89: 16, 90: 4672, 100: 744},
    ("_decode_kernel", "bfloat16"): {89: 16},
    ("_decode_kernel", "float32"): {90: 168},
    ("_latent_kernel", "bfloat16"): {90: 200},
    ("_latent_kernel", "float32"): {90: 1440},
    ("_sampled_kernel", "bfloat16"): {80: 16, 89: 8, 100: 80},
    ("_sampled_kernel", "float16"): {89: 8},
    ("_sampled_kernel", "float32"): {80: 16, 89: 8, 100: 72},
}
"""Registers of a thread that do not fit, in bytes: the launches that are known to spill. All others must not."""


def test_every_kernel_is_compiled() -> None:
    """One that is added must be launched by ``launches.py``."""
    capability, dtype, launches = QUICK
    resources = compiled(f"sm_{capability}", dtype, launches)
    assert {used["kernel"] for used in resources["compiled"]} == set(resources["kernels"])


@pytest.mark.parametrize(("capability", "dtype", "launches"), CASES)
def test_shared_memory_fits(capability: int, dtype: str, launches: str) -> None:
    used = compiled(f"sm_{capability}", dtype, launches)["compiled"]
    limit_bytes = SHARED_BYTES[capability]
    assert not [entry for entry in used if entry["shared_bytes"] > limit_bytes]


@pytest.mark.parametrize(("capability", "dtype", "launches"), CASES)
def test_registers_do_not_spill(capability: int, dtype: str, launches: str) -> None:
    def allowed_bytes(kernel: str) -> int:
        return LOCAL_BYTES.get((kernel, dtype), {}).get(capability, 0)

    used = compiled(f"sm_{capability}", dtype, launches)["compiled"]
    assert not [entry for entry in used if entry["local_bytes"] > allowed_bytes(entry["kernel"])]


@pytest.mark.parametrize(("capability", "dtype", "launches"), [case for case in CASES if case.values[1] != "float32"])
def test_products_use_the_matrix_unit(capability: int, dtype: str, launches: str) -> None:
    used = compiled(f"sm_{capability}", dtype, launches)["compiled"]
    for kernel, instructions in MATRIX_INSTRUCTIONS.items():
        found = {entry["launch"]: entry["matrix"] for entry in used if entry["kernel"] == kernel}
        assert found
        instruction = instructions.get(capability)
        if instruction is not None:
            assert {launch: matrix for launch, matrix in found.items() if matrix != [instruction]} == {}
