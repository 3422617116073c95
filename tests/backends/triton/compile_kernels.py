"""Compiles every kernel ahead of time for one NVIDIA architecture; run as a module in a process without an interpreter.

    python -m tests.backends.triton.compile_kernels 90

Prints one line of JSON: for each kernel its shared memory in bytes, its local bytes (spills) and matrix instructions.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_source

from tgi_triton import activations, decode_attention, gemv, norms, prefill_attention, rope, sampled, sampling, tables
from tgi_triton.decode_attention import tile_tokens
from tgi_triton.device_code import launch_options
from tgi_triton.tuning import Tuning, cuda_tuning

_INTEGERS = {
    "slots_ptr": "*i64",
    "slot_mapping_ptr": "*i64",
    "positions_ptr": "*i64",
    "q_starts_ptr": "*i64",
    "tokens_ptr": "*i32",
    "lengths_ptr": "*i32",
    "table_ptr": "*i32",
    "row_table_ptr": "*i32",
    "tables_ptr": "*i32",
    "kv_lens_ptr": "*i32",
    "arrivals_ptr": "*i32",
    "index_ptr": "*i32",
}
_FLOATS = {
    "eps": "fp32",
    "offset": "fp32",
    "score_scale": "fp32",
    "soft_cap": "fp32",
    "cos_ptr": "*fp32",
    "sin_ptr": "*fp32",
    "sums_ptr": "*fp32",
    "statistics_ptr": "*fp32",
    "highest_ptr": "*fp32",
    "total_ptr": "*fp32",
    "logprobs_ptr": "*fp32",
}
_ITEM_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


class Variant(NamedTuple):
    """One kernel with its constants; ``types`` are those of arguments beyond the usual."""

    name: str
    kernel: Any
    constants: Mapping[str, Any]
    options: Mapping[str, int]
    types: Mapping[str, str] = {}


def variants(tuning: Tuning, dtype: str) -> Iterator[Variant]:
    """Every kernel at the sizes of a large model, as the launches would ask for it."""
    dependent = tuning.dependent_launch
    for head_dim, window, soft_cap in ((64, 0, False), (128, 0, False), (128, 4096, True), (256, 1024, False)):
        heads = {"NUM_KV_HEADS": 8, "GROUP": 4, "HEAD_DIM": head_dim, "BLOCK_D": head_dim, "BLOCK_SIZE": 16}
        common = heads | {
            "DESCRIPTOR": False,
            "WINDOW": window,
            "SOFT_CAP": soft_cap,
            "UPCAST": False,
            "DEPENDENT": dependent,
        }
        label = f"{head_dim}-{window}-{dtype}"
        tile = tile_tokens(tuning.decode_tile_bytes, head_dim, _ITEM_BYTES[dtype])
        yield Variant(
            f"decode-{label}",
            decode_attention._decode_kernel,
            common | {"HEADS": 16, "TILE": tile},
            {"num_warps": tuning.decode_warps, "num_stages": tuning.decode_stages},
        )
        tile = tile_tokens(tuning.prefill_tile_bytes, head_dim, _ITEM_BYTES[dtype])
        rows = prefill_attention.program_rows(tuning, head_dim, _ITEM_BYTES[dtype])
        yield Variant(
            f"prefill-{label}",
            prefill_attention._prefill_kernel,
            common | {"HEADS": 4, "QUERIES": rows // 4, "TILE": tile},
            {"num_warps": tuning.prefill_warps, "num_stages": tuning.prefill_stages},
        )
    yield Variant(
        f"add_rms_norm-{dtype}",
        norms._rms_norm_kernel,
        {"ADD": True, "OFFSET": False, "BLOCK": 4096, "DEPENDENT": dependent},
        {"num_warps": 8},
    )
    yield Variant(
        f"norm_rope-{dtype}",
        rope._rope_write_kv_kernel,
        {"NUM_HEADS": 32, "NUM_KV_HEADS": 8, "HEAD_DIM": 128, "HALF": 64, "NORM": True, "OFFSET": False}
        | {"HEADS": 16, "BLOCK_HALF": 64, "BLOCK_REST": 1, "DEPENDENT": dependent},
        {"num_warps": 4},
    )
    yield Variant(
        f"activation-{dtype}",
        activations._activation_mul_kernel,
        {"ACTIVATION": "silu", "BLOCK": 1024, "DEPENDENT": dependent},
        {"num_warps": 4},
    )
    yield Variant(
        f"gemv-{dtype}",
        gemv._gemv_kernel,
        {"INPUTS": 4096, "BIAS": False, "GATED": True, "ACTIVATION": "silu", "OUTPUTS": 1, "BLOCK": 2048}
        | {"DEPENDENT": dependent},
        {"num_warps": tuning.gemv_warps},
    )
    yield Variant(
        f"greedy-{dtype}",
        sampling._greedy_kernel,
        {"DEPTH": 8, "BLOCK": 1024, "DEPENDENT": dependent},
        {"num_warps": 8},
        {"ids_ptr": "*i64"},
    )
    yield Variant(
        f"sampled-{dtype}",
        sampled._sampled_kernel,
        {"ZERO_BITS": {"bf16": 16, "fp16": 13, "fp32": 0}[dtype], "BLOCK": 8192},
        {"num_warps": 32},
        {"ids_ptr": "*i64", "do_sample_ptr": "*i1", "seed_ptr": "*i64", "position_ptr": "*i32", "top_k_ptr": "*i32"}
        | {"temperature_ptr": "*fp32", "top_p_ptr": "*fp32"},
    )
    if dtype == "fp32":
        yield Variant(
            "decode_inputs",
            tables._decode_inputs_kernel,
            {"BLOCK_SIZE": 16, "COLUMNS": 512},
            {"num_warps": 4},
            {"ids_ptr": "*i32"},
        )
        yield Variant(
            "advance",
            tables._advance_kernel,
            {"BLOCK": 128, "DEPENDENT": dependent},
            {"num_warps": 1},
            {"ids_ptr": "*i64"},
        )


def compile_variant(variant: Variant, dtype: str, capability: int) -> dict[str, Any]:
    """Compile one variant; returns its resources."""
    kernel, constants = variant.kernel, variant.constants
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        else:
            known = {**_INTEGERS, **_FLOATS, **variant.types}
            signature[name] = known.get(name, f"*{dtype}" if name.endswith("_ptr") else "i32")
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or name.endswith("_stride")
    }
    indexed = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, constexprs=indexed, attrs=aligned)
    options = dict(variant.options) | launch_options(bool(constants.get("DEPENDENT")))
    compiled = compile_source(source, target=GPUTarget("cuda", capability, 32), options=options)
    instructions = sorted(set(re.findall(r"\b(wgmma|mma\.sync|tcgen05\.mma)", compiled.asm["ptx"])))
    return {"shared": compiled.metadata.shared, "local": _local_bytes(compiled.asm["cubin"]), "matrix": instructions}


def _local_bytes(cubin: bytes) -> int:
    """Bytes of local memory a thread uses: registers that did not fit."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    return sum(int(number) for number in re.findall(r"(?:STACK|LOCAL):(\d+)", report.stdout))


def main() -> None:
    """Compile everything for the capability that the command line names."""
    capability = int(sys.argv[1])
    tuning = cuda_tuning(capability // 10, capability % 10, 132)
    resources = {
        variant.name: compile_variant(variant, dtype, capability)
        for dtype in sys.argv[2:] or _ITEM_BYTES
        for variant in variants(tuning, dtype)
    }
    print(json.dumps(resources))


if __name__ == "__main__":
    main()
