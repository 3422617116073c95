"""Which AMD GPUs can be used, or what stands in the way and what would help."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from tgi_core.contract import DeviceInfo, Probe
from tgi_core.gpu_backend import ask_torch

ARCHITECTURES = ("gfx90a", "gfx942", "gfx950", "gfx11", "gfx12")
"""How the names of those begin whose matrix units the kernels are compiled for: CDNA 2 to 4, RDNA 3 and 4."""

DRIVER = Path("/dev/kfd")
"""The compute device of AMD's kernel driver."""

_INSTALL_TORCH = (
    "Install a ROCm build of torch, which PyPI does not have: from PyTorch's index for your ROCm version "
    "(https://pytorch.org/get-started/locally) or from AMD's index for your GPU; then tgi-serve."
)


def probe_devices() -> Probe:
    """Look for GPUs. Never raises."""
    # A machine without the driver is answered without loading torch.
    if not DRIVER.exists():
        return Probe(
            reason="there is no AMD GPU driver on this machine, or it is hidden from this container",
            fix="Install AMD's amdgpu driver; a container needs --device /dev/kfd --device /dev/dri.",
        )
    return ask_torch(probe_torch, library="ROCm", install_torch=_INSTALL_TORCH, check="Check the driver with rocminfo.")


def probe_torch(torch: Any) -> Probe:
    """What this ``torch`` finds; whatever it raises passes through."""
    if torch.version.hip is None:
        return Probe(reason=f"torch {torch.__version__} is built without ROCm", fix=_INSTALL_TORCH)
    if importlib.util.find_spec("triton") is None:
        return Probe(reason="Triton is not installed, which ROCm builds of torch bring along", fix=_INSTALL_TORCH)
    if not torch.cuda.is_available():
        return Probe(
            reason=f"torch, built for ROCm {torch.version.hip}, finds no GPU it can use",
            fix="Check rocminfo, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, and that you may read /dev/kfd "
            "(groups video and render).",
        )
    devices, unknown = [], []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        if architecture_of(properties).startswith(ARCHITECTURES):
            devices.append(DeviceInfo(index, properties.name, properties.total_memory))
        else:
            unknown.append(f"{properties.name} ({architecture_of(properties)})")
    if not devices:
        return Probe(
            reason=f"the kernels are made for {', '.join(ARCHITECTURES)}, and there is {', '.join(unknown)}",
            fix="Use another backend; a card of the same family as one of these may run with HSA_OVERRIDE_GFX_VERSION.",
        )
    return Probe(devices=tuple(devices))


def architecture_of(properties: Any) -> str:
    """ "gfx942" of torch's properties of a GPU, whose "gfx942:sramecc+:xnack-" names features too."""
    name: str = properties.gcnArchName
    return name.split(":", maxsplit=1)[0]
