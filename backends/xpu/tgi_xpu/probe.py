"""Which Intel GPUs can be used, or what stands in the way and what would help."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from tgi_core.contract import DeviceInfo, Probe
from tgi_core.gpu_backend import ask_torch

RENDER_NODES = Path("/dev/dri")
"""Where Linux has a file for each GPU that can compute."""

_INSTALL_TORCH = (
    "Install torch's build for Intel GPUs, which PyPI does not have: from PyTorch's xpu index "
    "(https://pytorch.org/get-started/locally); then tgi-serve."
)


def probe_devices() -> Probe:
    """Look for GPUs. Never raises."""
    # A machine without a GPU is answered without loading torch.
    if not any(RENDER_NODES.glob("renderD*")):
        return Probe(
            reason="there is no GPU on this machine, or it is hidden from this container",
            fix="Install Intel's GPU driver; a container needs --device /dev/dri.",
        )
    return ask_torch(
        probe_torch, library="torch.xpu", install_torch=_INSTALL_TORCH, check="Check the driver with sycl-ls or clinfo."
    )


def probe_torch(torch: Any) -> Probe:
    """What this ``torch`` finds; whatever it raises passes through."""
    if torch.version.xpu is None:
        return Probe(reason=f"torch {torch.__version__} is built without support for Intel GPUs", fix=_INSTALL_TORCH)
    if not torch.xpu.is_available():
        return Probe(
            reason="torch finds no Intel GPU it can use",
            fix="Check sycl-ls and ZE_AFFINITY_MASK, and that you may read /dev/dri (group render).",
        )
    properties = [torch.xpu.get_device_properties(index) for index in range(torch.xpu.device_count())]
    return Probe(devices=tuple(DeviceInfo(index, gpu.name, gpu.total_memory) for index, gpu in enumerate(properties)))


def has_graphs() -> bool:
    """Whether decode steps can be recorded: torch has graphs, and there are kernels of ours that one may hold."""
    import torch

    return hasattr(torch.xpu, "XPUGraph") and importlib.util.find_spec("triton") is not None
