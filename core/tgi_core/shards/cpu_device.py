"""The host as a device."""

from __future__ import annotations

import math
import mmap

import torch

from tgi_core.contract import Device, DeviceMemory
from tgi_core.host_memory import free_memory_bytes, peak_memory_bytes, reset_peak_memory, total_memory_bytes


class CpuDevice(Device):
    """Kernels return when they have run, so there is nothing to wait for."""

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> DeviceMemory:
        return DeviceMemory(free_memory_bytes(), total_memory_bytes(), peak_memory_bytes())

    def reset_peak(self) -> None:
        reset_peak_memory()

    @property
    def kv_cache_share(self) -> float:
        # The host's memory is everybody's.
        return 0.25

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Zeros whose pages are taken from the system when they are first written."""
        memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=dtype).view(shape)

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""
