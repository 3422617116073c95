"""The CPU as a backend: always there, taken when no accelerator is."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from msgspec.structs import replace

from tgi_core.contract import (
    Backend,
    BackendInfo,
    Capabilities,
    Device,
    DeviceInfo,
    Kernels,
    ModelShard,
    Probe,
    ShardSpec,
)
from tgi_core.host_memory import total_memory_bytes
from tgi_cpu.threads import default_threads


class CpuBackend(Backend):
    """Runs models on the host's processor."""

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(name="cpu", title="CPU (torch, oneDNN)", extra="cpu", docs="docs/backends/cpu.md")

    def probe(self) -> Probe:
        name = platform.processor() or platform.machine()
        return Probe(devices=(DeviceInfo(0, name, total_memory_bytes()),))

    def capabilities(self) -> Capabilities:
        from tgi_cpu.linear import has_fast_bf16

        # Without native bfloat16 arithmetic float32 is faster. float16 never is.
        bf16_first = has_fast_bf16()
        return Capabilities(
            dtypes=("bfloat16", "float32") if bf16_first else ("float32", "bfloat16"),
            batch_invariant_dtypes=("bfloat16",) if bf16_first else (),
        )

    def process_environment(self) -> Mapping[str, str]:
        # Weights in huge pages: a decode step streams all of them, and small pages cost it a tenth of its time.
        return {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

    def open_device(self, local_index: int) -> Device:  # noqa: ARG002 - there is one
        from tgi_core.shards.cpu_device import CpuDevice

        return CpuDevice()

    def kernels(self, device: Device) -> Kernels:  # noqa: ARG002 - there is one
        from tgi_cpu.kernels import CpuKernels

        return CpuKernels()

    def create_shard(self, spec: ShardSpec) -> ModelShard:
        if spec.cpu_threads is None:
            spec = replace(spec, cpu_threads=default_threads())
        return super().create_shard(spec)
