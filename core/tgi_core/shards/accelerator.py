"""Devices that torch drives through a module of its own with streams, events and graphs, such as ``torch.cuda``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from tgi_core.contract import Device, DeviceEvent, DeviceGraph, DeviceMemory

Pool = Any
"""The handle of a memory pool; torch names its type nowhere public."""

Graph = Any
"""Torch's graph of the device type: ``replay``, ``capture_end`` and ``pool``."""


class AcceleratorDevice(Device):
    """All work goes to the device's default stream, except while a graph is recorded.

    Args:
        device_type: torch's name of it.
        local_index: which of the visible devices.
    """

    def __init__(self, device_type: str, local_index: int) -> None:
        self._device = torch.device(device_type, local_index)
        # The modules have the same functions by convention; torch gives them no common type.
        self._torch: Any = getattr(torch, device_type)
        self._torch.set_device(self._device)
        self._recording = self._torch.Stream(self._device)
        self._pool_holder: Graph | None = None

    @property
    def torch_device(self) -> torch.device:
        return self._device

    def memory(self) -> DeviceMemory:
        free_bytes, total_bytes = self._torch.mem_get_info(self._device)
        # What torch's allocator has taken and does not use is free for this process.
        idle_bytes = self._torch.memory_reserved(self._device) - self._torch.memory_allocated(self._device)
        return DeviceMemory(free_bytes + idle_bytes, total_bytes, self._torch.max_memory_allocated(self._device))

    def reset_peak(self) -> None:
        self._torch.reset_peak_memory_stats(self._device)

    def synchronize(self) -> None:
        self._torch.synchronize(self._device)

    def record_event(self) -> DeviceEvent:
        event: DeviceEvent = self._torch.Event()
        event.record(self._torch.current_stream(self._device))  # type: ignore[attr-defined]
        return event

    def capture(self, work: Callable[[], None]) -> DeviceGraph:
        if self._pool_holder is None:
            # A pool dies with the last of its graphs and cannot be taken up again: one graph of nothing keeps it.
            self._pool_holder = self._record(lambda: torch.empty(1, device=self._device).zero_(), None)
        graph: DeviceGraph = self._record(work, self._pool_holder.pool())
        return graph

    @abstractmethod
    def _begin_graph(self, pool: Pool | None) -> Graph:
        """A new graph that records from now on what the current stream is given."""

    def _record(self, work: Callable[[], object], pool: Pool | None) -> Graph:
        current = self._torch.current_stream(self._device)
        self._recording.wait_stream(current)
        with self._torch.stream(self._recording):
            work()
            self._recording.synchronize()
            graph = self._begin_graph(pool)
            try:
                work()
            finally:
                graph.capture_end()
        current.wait_stream(self._recording)
        return graph


class CudaDevice(AcceleratorDevice):
    """A GPU that torch calls "cuda": NVIDIA's, and AMD's in its builds for ROCm.

    Args:
        local_index: which of the visible GPUs.
    """

    def __init__(self, local_index: int) -> None:
        super().__init__("cuda", local_index)
        # float32 means float32: TF32 would keep ten bits of a product's operands.
        torch.backends.cuda.matmul.allow_tf32 = False
        # Sums of 16-bit products stay in float32, as the contract says.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    def _begin_graph(self, pool: Pool | None) -> Graph:
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as a heartbeat's, may use the device meanwhile.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        return graph
