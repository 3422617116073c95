"""Compiles what the kernels launch for one architecture; run as a module in a process without an interpreter.

    python -m tests.backends.triton.compile_kernels sm_90 bfloat16 [REGULAR EXPRESSION OF LAUNCHES]

A driver without a device stands in for the vendor's, so each kernel is compiled exactly as its launch asks for it: with
the architecture's tuning, and specialised on the arguments' types and alignments. Prints the resources as JSON.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction
from triton.runtime import driver as triton_driver

import tgi_triton
from tests.backends.triton.launches import launches
from tgi_triton import TritonKernels, Tuning, cuda_tuning, rocm_tuning

MULTIPROCESSORS = 132
COMPUTE_UNITS = 304


class NoDevice:
    """What Triton asks of a driver; nothing is loaded and nothing launched."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target
        # What a launch would need is asserted by the tests, which know every architecture's limits.
        self.utils = SimpleNamespace(
            load_binary=lambda name, binary, shared_bytes, device: (object(), object(), 0, 0, 1024),
            unload_module=lambda module: None,
            get_device_properties=lambda device: {"max_shared_mem": 1 << 30},
        )

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: object, metadata: object) -> Callable[..., None]:
        return lambda *arguments: None


class Collector:
    """Listens to the compiler and keeps the resources of each kernel by the launch that asked for it."""

    def __init__(self, read: Callable[[Mapping[str, Path]], dict[str, Any]]) -> None:
        self._read = read
        self.launch = ""
        self.found: list[dict[str, Any]] = []

    def __call__(
        self, *, src: object, metadata: Mapping[str, Any], metadata_group: Mapping[str, str], **rest: object
    ) -> None:
        files = {Path(name).suffix: Path(path) for name, path in metadata_group.items()}
        self.found.append(
            {
                "launch": self.launch,
                "kernel": metadata["name"],
                "shared_bytes": metadata["shared"],
                "warps": metadata["num_warps"],
                **self._read(files),
            }
        )


def read_nvidia(files: Mapping[str, Path]) -> dict[str, Any]:
    """Matrix instructions, registers of a thread, and bytes of local memory: registers that did not fit."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    command = [tool, "--dump-resource-usage", files[".cubin"]]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report)}
    matrix = sorted(set(re.findall(r"\b(wgmma|mma\.sync|tcgen05\.mma)", files[".ptx"].read_text())))
    return {"matrix": matrix, "registers": usage["REG"], "local_bytes": usage["STACK"] + usage["LOCAL"]}


def read_amd(files: Mapping[str, Path]) -> dict[str, Any]:
    """The same out of an AMD kernel's assembly; scratch is where its spilled registers go."""
    assembly = files[".amdgcn"].read_text()
    usage = {name: int(number) for name, number in re.findall(r"^\s+\.(\w+):\s+(\d+)$", assembly, re.MULTILINE)}
    return {
        "matrix": sorted(set(re.findall(r"\b(v_mfma|v_wmma)_", assembly))),
        "registers": usage["vgpr_count"],
        "spilled_registers": usage["vgpr_spill_count"],
        "local_bytes": usage["private_segment_fixed_size"],
    }


def choose_target(architecture: str) -> tuple[GPUTarget, Tuning, Callable[[Mapping[str, Path]], dict[str, Any]]]:
    """What Triton compiles for, the tuning, and how to read what came out."""
    if architecture.startswith("sm_"):
        capability = int(architecture.removeprefix("sm_"))
        tuning = cuda_tuning(capability // 10, capability % 10, MULTIPROCESSORS)
        return GPUTarget("cuda", capability, 32), tuning, read_nvidia
    lanes = 64 if architecture.startswith("gfx9") else 32
    return GPUTarget("hip", architecture, lanes), rocm_tuning(architecture, COMPUTE_UNITS), read_amd


def launched_kernels() -> list[str]:
    """Every kernel of the package; device functions have other names."""
    modules = [importlib.import_module(f"tgi_triton.{info.name}") for info in pkgutil.iter_modules(tgi_triton.__path__)]
    return sorted(
        {
            name
            for module in modules
            for name, value in vars(module).items()
            if isinstance(value, JITFunction) and name.endswith("_kernel")
        }
    )


def main() -> None:
    """Compile the launches, all of them unless some are named, for the command line's architecture and type."""
    architecture, dtype, *wanted = sys.argv[1:]
    target, tuning, read = choose_target(architecture)
    triton_driver.set_active(NoDevice(target))
    collector = Collector(read)
    kernels = TritonKernels(torch.device("meta"), tuning)
    with tempfile.TemporaryDirectory() as cache, triton.knobs.cache.scope(), triton.knobs.compilation.scope():
        triton.knobs.cache.dir = cache
        triton.knobs.compilation.listener = collector
        for name, launch in launches(kernels, getattr(torch, dtype)):
            if all(re.search(pattern, name) for pattern in wanted):
                collector.launch = name
                launch()
    print(json.dumps({"kernels": launched_kernels(), "compiled": collector.found}))


if __name__ == "__main__":
    main()
