"""Which GPUs can be used, or what stands in the way and what would help."""

from __future__ import annotations

import ctypes
import importlib.util
from typing import Any

from tgi_core.contract import DeviceInfo, Probe
from tgi_core.gpu_backend import ask_torch

MINIMUM_CAPABILITY = (8, 0)
"""Ampere: the first with bfloat16."""

_INSTALL_TORCH = "Install a CUDA build of torch: pip install torch, or see https://pytorch.org/get-started/locally."


def probe_devices() -> Probe:
    """Look for GPUs. Never raises."""
    # A machine without the driver is answered without loading torch.
    if not has_driver():
        return Probe(reason="there is no NVIDIA driver on this machine", fix="Install NVIDIA's driver.")
    if importlib.util.find_spec("triton") is None:
        return Probe(reason="Triton is not installed", fix='Install it: pip install "tgi-serve[cuda]".')
    return ask_torch(
        probe_torch, library="CUDA", install_torch=_INSTALL_TORCH, check="Check the driver with nvidia-smi."
    )


def has_driver() -> bool:
    """Whether the driver's library is there, asked without torch."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def probe_torch(torch: Any) -> Probe:
    """What this ``torch`` finds; whatever it raises passes through."""
    if torch.version.cuda is None:
        return Probe(reason=f"torch {torch.__version__} is built without CUDA", fix=_INSTALL_TORCH)
    if not torch.cuda.is_available():
        return Probe(
            reason=f"torch, built for CUDA {torch.version.cuda}, finds no GPU it can use",
            fix="Check nvidia-smi and CUDA_VISIBLE_DEVICES; a driver older than this CUDA needs an update.",
        )
    devices, too_old = [], []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        if (properties.major, properties.minor) < MINIMUM_CAPABILITY:
            too_old.append(f"{properties.name} (compute capability {properties.major}.{properties.minor})")
        else:
            devices.append(DeviceInfo(index, properties.name, properties.total_memory))
    if not devices:
        needed = ".".join(map(str, MINIMUM_CAPABILITY))
        return Probe(
            reason=f"compute capability {needed} is needed, and there is {', '.join(too_old)}",
            fix="Use another backend or a newer GPU.",
        )
    return Probe(devices=tuple(devices))
