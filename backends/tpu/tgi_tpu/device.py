"""TPUs of one host, opened for this process as one device."""

from __future__ import annotations

import jax
import torch
from torch import Tensor

from tgi_core.contract import CompiledStep, Device, DeviceEvent, DeviceMemory, DeviceState, HostCopy
from tgi_core.host_memory import free_memory_bytes, peak_memory_bytes, reset_peak_memory, total_memory_bytes
from tgi_tpu.arrays import host_tensor
from tgi_tpu.executor import JaxExecutor, device_faults
from tgi_tpu.lowering import DEVICE, from_host, to_array
from tgi_tpu.probe import runs_on_host


class TpuDevice(Device):
    """Tensors lie where the executor puts them, and are computed with by what it compiles.

    Args:
        executor: runs the programs.
    """

    def __init__(self, executor: JaxExecutor) -> None:
        self.executor = executor
        self._launched: list[jax.Array] = []

    @property
    def torch_device(self) -> torch.device:
        return DEVICE

    @property
    def num_compiled(self) -> int:
        return self.executor.num_compiled

    @property
    def kv_cache_share(self) -> float:
        # The host's memory is everybody's.
        return 0.1 if runs_on_host() else 1.0

    def memory(self) -> DeviceMemory:
        """Of all its TPUs together, as far as every one has it: what is divided lies in equal parts on them."""
        if runs_on_host():
            return DeviceMemory(free_memory_bytes(), total_memory_bytes(), peak_memory_bytes())
        stats = [device.memory_stats() for device in self.executor.devices]
        used_bytes, count = max(each["bytes_in_use"] for each in stats), len(stats)
        total_bytes = min(each["bytes_limit"] for each in stats)
        # The runtime's own peak cannot start anew.
        peak_bytes = used_bytes + self.executor.temporary_bytes
        return DeviceMemory(count * (total_bytes - used_bytes), count * total_bytes, count * peak_bytes)

    def reset_peak(self) -> None:
        self.executor.temporary_bytes = 0
        if runs_on_host():
            reset_peak_memory()

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Zeros; caches are divided along the last axis but one, that of their heads."""
        return self.executor.zeros(shape, dtype, len(shape) - 2 if len(shape) > 3 else None)

    def upload(self, tensor: Tensor) -> Tensor:
        return from_host(tensor)

    def download(self, tensor: Tensor) -> HostCopy:
        array = to_array(tensor)
        array.copy_to_host_async()
        self._launched.append(array)
        return _ArrayCopy(array)

    def compile(self, work: CompiledStep, state: DeviceState, inputs: tuple[Tensor, ...]) -> CompiledStep:
        return self.executor.compile(work, state, inputs)

    def record_event(self) -> DeviceEvent:
        """Of everything downloaded since the last: programs run in order."""
        launched, self._launched = self._launched, []
        return _ArraysReady(launched)

    def synchronize(self) -> None:
        self.executor.wait()


class _ArrayCopy:
    """An array on its way to the host."""

    def __init__(self, array: jax.Array) -> None:
        self._array = array

    def read(self) -> Tensor:
        with device_faults():
            return host_tensor(self._array)


class _ArraysReady:
    """Passed when some arrays have been computed."""

    def __init__(self, arrays: list[jax.Array]) -> None:
        self._arrays = arrays

    def synchronize(self) -> None:
        with device_faults():
            jax.block_until_ready(self._arrays)
