"""Intel GPUs as a backend: torch's own support, Triton kernels, decode steps as XPU graphs."""

from __future__ import annotations

from msgspec.structs import replace

from tgi_core.contract import (
    AttentionChoice,
    AttentionOption,
    AttentionUse,
    BackendInfo,
    Capabilities,
    Device,
    GraphMode,
    Kernels,
    Probe,
)
from tgi_core.gpu_backend import GpuBackend

ATTENTION = ("triton", "vllm-xpu-kernels", "ipex", "reference")
"""What ``--attention`` takes; our own kernels first."""


class XpuBackend(GpuBackend):
    """Runs models on one Intel GPU."""

    attention = ATTENTION

    @property
    def info(self) -> BackendInfo:
        # Below the dedicated GPUs of other vendors: many processors come with a small Intel GPU.
        return BackendInfo(
            name="xpu", title="Intel GPU (Triton, oneDNN)", extra="xpu", docs="docs/backends/xpu.md", priority=80
        )

    def probe(self) -> Probe:
        from tgi_xpu.probe import probe_devices

        return probe_devices()

    def capabilities(self) -> Capabilities:
        from tgi_xpu.probe import has_graphs

        return replace(super().capabilities(), graph=GraphMode.DECODE if has_graphs() else GraphMode.NONE)

    def open_device(self, local_index: int) -> Device:
        from tgi_xpu.device import XpuDevice

        return XpuDevice(local_index)

    def attention_options(self, use: AttentionUse) -> tuple[AttentionOption, ...]:
        from tgi_xpu.attention import list_options

        return list_options(use)

    def kernels_for(self, device: Device, attention: AttentionChoice | None) -> Kernels:
        from tgi_xpu.attention import open_kernels

        return open_kernels(device, attention)
