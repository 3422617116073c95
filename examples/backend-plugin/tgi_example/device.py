"""A device: where tensors lie, how much memory there is, and how to wait."""

from __future__ import annotations

import os
import resource

import torch

from tgi_core.contract import Device, DeviceMemory


class ExampleDevice(Device):
    """The host's processor. Operations return when they have run, so there is nothing to wait for."""

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> DeviceMemory:
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        return DeviceMemory(
            free_bytes=page_bytes * os.sysconf("SC_AVPHYS_PAGES"),
            total_bytes=page_bytes * os.sysconf("SC_PHYS_PAGES"),
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )

    @property
    def kv_cache_share(self) -> float:
        # Other programs live in the host's memory.
        return 0.25

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""
