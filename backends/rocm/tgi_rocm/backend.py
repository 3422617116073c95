"""AMD GPUs as a backend: Triton kernels, hipBLASLt, decode steps as HIP graphs."""

from __future__ import annotations

import os
from collections.abc import Mapping

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

ATTENTION = ("triton", "aiter", "flash-attn")
"""What ``--attention`` takes; our own kernels first."""


class RocmBackend(GpuBackend):
    """Runs models on one AMD GPU of the CDNA 2 to 4 or RDNA 3 to 4 families. Torch calls it "cuda"."""

    attention = ATTENTION

    @property
    def info(self) -> BackendInfo:
        # A torch has either CUDA or ROCm in it, so that the order of the two decides nothing.
        return BackendInfo(
            name="rocm", title="AMD GPU (Triton, hipBLASLt)", extra="rocm", docs="docs/backends/rocm.md", priority=90
        )

    def probe(self) -> Probe:
        from tgi_rocm.probe import probe_devices

        return probe_devices()

    def process_environment(self) -> Mapping[str, str]:
        settings = {
            # Kernel arguments in the device's memory: a launch reads them over no bus.
            "HIP_FORCE_DEV_KERNARG": "1",
            "TORCH_BLAS_PREFER_HIPBLASLT": "1",
        }
        if os.environ.get("PYTORCH_TUNABLEOP_FILENAME"):
            # Products as a file of measured choices says; nothing is measured while requests wait.
            settings |= {"PYTORCH_TUNABLEOP_ENABLED": "1", "PYTORCH_TUNABLEOP_TUNING": "0"}
        return settings

    def open_device(self, local_index: int) -> Device:
        from tgi_core.shards.accelerator import CudaDevice

        return CudaDevice(local_index)

    def attention_options(self, use: AttentionUse) -> tuple[AttentionOption, ...]:
        import torch

        from tgi_core.shards.attention_providers import list_options
        from tgi_rocm.attention import FASTER, PROVIDERS
        from tgi_rocm.probe import architecture_of

        architecture = architecture_of(torch.cuda.get_device_properties(0))
        faster = {name for name, measured in FASTER if measured == architecture}
        return list_options(PROVIDERS, architecture, use, faster=faster, place=f"on {architecture}", own=ATTENTION[0])

    def kernels_for(self, device: Device, attention: AttentionChoice | None) -> Kernels:
        import torch

        from tgi_rocm.attention import PROVIDERS
        from tgi_rocm.probe import architecture_of
        from tgi_triton import kernels_with, rocm_tuning

        properties = torch.cuda.get_device_properties(device.torch_device)
        tuning = rocm_tuning(architecture_of(properties), properties.multi_processor_count)
        return kernels_with(device, tuning, attention, PROVIDERS)
