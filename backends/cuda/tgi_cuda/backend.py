"""NVIDIA GPUs as a backend: Triton kernels, cuBLAS, decode steps as CUDA graphs."""

from __future__ import annotations

from tgi_core.contract import (
    AttentionChoice,
    AttentionOption,
    AttentionUse,
    BackendInfo,
    Device,
    Kernels,
    Probe,
)
from tgi_core.gpu_backend import GpuBackend
from tgi_cuda.attention import NAMES


class CudaBackend(GpuBackend):
    """Runs models on one NVIDIA GPU of compute capability 8.0 or newer."""

    attention = NAMES

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(
            name="cuda", title="NVIDIA GPU (Triton, cuBLAS)", extra="cuda", docs="docs/backends/cuda.md", priority=100
        )

    def probe(self) -> Probe:
        from tgi_cuda.probe import probe_devices

        return probe_devices()

    def open_device(self, local_index: int) -> Device:
        from tgi_core.shards.accelerator import CudaDevice

        return CudaDevice(local_index)

    def attention_options(self, use: AttentionUse) -> tuple[AttentionOption, ...]:
        import torch

        from tgi_cuda.attention.choose import list_options

        return list_options(torch.cuda.get_device_capability(0), use)

    def kernels_for(self, device: Device, attention: AttentionChoice | None) -> Kernels:
        from tgi_cuda.attention.choose import PROVIDERS
        from tgi_cuda.kernels import gpu_tuning
        from tgi_triton import kernels_with

        return kernels_with(device, gpu_tuning(device.torch_device), attention, PROVIDERS)
