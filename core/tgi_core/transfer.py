"""Copies between host and device that neither side waits for."""

from __future__ import annotations

import torch
from torch import Tensor

_PINNING = frozenset({"cuda", "xpu"})
"""Device types that copy from and to page-locked memory; others have none."""


def stage(tensor: Tensor, device: torch.device) -> Tensor:
    """A host tensor that ``device`` can copy from; from pageable memory the copy may wait for the whole stream."""
    return tensor.pin_memory() if device.type in _PINNING else tensor


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Bring a host tensor to the device."""
    return stage(tensor, device).to(device, non_blocking=True)


def download(tensor: Tensor) -> Tensor:
    """Start a copy to the host; its values are there once an event recorded after it has passed."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type in _PINNING)
    return host.copy_(tensor, non_blocking=True)
