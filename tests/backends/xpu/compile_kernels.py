"""Compiles what the kernels launch for an Intel GPU; run as a module by a Python whose Triton is triton-xpu 3.3.

    python -m tests.backends.xpu.compile_kernels pvc bfloat16

A driver without a device stands in for Intel's, as in ``tests.backends.triton.compile_kernels``. Prints as JSON what of
each kernel would be loaded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.runtime import driver as triton_driver

from tests.backends.triton.compile_kernels import launched_kernels
from tests.backends.triton.launches import launches
from tgi_triton import TritonKernels, xpu_tuning

CORES = 56
PROPERTIES = {
    "architecture": 0,
    "name": "none",
    "sub_group_sizes": [16, 32],
    "max_work_group_size": 1024,
    "max_num_sub_groups": 64,
    "has_subgroup_matrix_multiply_accumulate": True,
    "has_subgroup_2d_block_io": True,
    "has_bfloat16_conversions": True,
    "has_fp64": True,
}


class NoDevice:
    """What Triton asks of a driver; a kernel that would be loaded is written down."""

    def __init__(self) -> None:
        self.launch = ""
        self.found: list[dict[str, Any]] = []
        self.utils = SimpleNamespace(
            load_binary=self._load,
            # What a launch would need is asserted by the tests.
            get_device_properties=lambda device: {"max_shared_mem": 1 << 30},
        )

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("xpu", PROPERTIES, 16)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: object, metadata: object) -> Callable[..., None]:
        return lambda *arguments, **options: None

    def _load(self, name: str, spirv: bytes, shared_bytes: int, *rest: object) -> tuple[object, object, int, int]:
        self.found.append(
            {
                "launch": self.launch,
                "kernel": name,
                "shared_bytes": shared_bytes,
                "magic": spirv[:4].hex(),
                # The matrix unit's instruction (DPAS), as SPIR-V calls it.
                "matrix": b"intel_sub_group" in spirv and b"_matrix_mad_" in spirv,
            }
        )
        return object(), object(), 0, 0


def main() -> None:
    """Compile everything for the architecture and the type that the command line names."""
    architecture, dtype = sys.argv[1:]
    # Asks Intel's compute runtime for the name of the device, which would have to be compiled with SYCL.
    names = SimpleNamespace(parse_device_arch=lambda number: architecture)
    backends["intel"].compiler.__init__.__globals__["compile_module_from_src"] = lambda source, name: names
    driver = NoDevice()
    triton_driver.set_active(driver)
    kernels = TritonKernels(torch.device("meta"), xpu_tuning(CORES))
    for name, launch in launches(kernels, getattr(torch, dtype)):
        driver.launch = name
        launch()
    print(json.dumps({"kernels": launched_kernels(), "compiled": driver.found}))


if __name__ == "__main__":
    main()
