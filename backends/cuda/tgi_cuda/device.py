"""One GPU, opened for this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tgi_core.contract import Device, DeviceEvent, DeviceGraph, DeviceMemory

Pool = Any
"""The handle of a memory pool; torch names its type nowhere public."""


class CudaDevice(Device):
    """All work goes to the device's default stream, except while a graph is recorded.

    Args:
        local_index: which of the visible GPUs.
    """

    def __init__(self, local_index: int) -> None:
        self._device = torch.device("cuda", local_index)
        torch.cuda.set_device(self._device)
        self._recording = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._pool_holder: torch.cuda.CUDAGraph | None = None

    @property
    def torch_device(self) -> torch.device:
        return self._device

    def memory(self) -> DeviceMemory:
        free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
        # What torch's allocator has taken and does not use is free for this process.
        idle_bytes = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return DeviceMemory(free_bytes + idle_bytes, total_bytes, torch.cuda.max_memory_allocated(self._device))

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def record_event(self) -> DeviceEvent:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def capture(self, work: Callable[[], None]) -> DeviceGraph:
        if self._pool_holder is None:
            # A pool dies with the last of its graphs and cannot be taken up again: one graph of nothing keeps it.
            self._pool_holder = self._record(lambda: torch.empty(1, device=self._device).zero_(), None)
        return self._record(work, self._pool_holder.pool())

    def _record(self, work: Callable[[], object], pool: Pool) -> torch.cuda.CUDAGraph:
        current = torch.cuda.current_stream(self._device)
        self._recording.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._recording):
            work()
            self._recording.synchronize()
            # Other threads, such as a heartbeat's, may use CUDA meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        current.wait_stream(self._recording)
        return graph
