"""One Gaudi card, opened for this process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tgi_core.contract import CompiledStep, Device, DeviceEvent, DeviceMemory, DeviceState, HostCopy
from tgi_gaudi.steps import RecordedStep, TracedStep


class GaudiDevice(Device):
    """A card in the mode that the environment chose: lazy with HPU graphs, or eager with torch.compile.

    In lazy mode operations are gathered until a mark step launches them, so one comes before everything that the
    host waits for.

    Args:
        local_index: which of the visible cards.

    Attributes:
        records: steps are recorded or compiled; otherwise their operations run one by one.
    """

    def __init__(self, local_index: int) -> None:
        # The import makes the device, its operations and torch.hpu known to torch.
        from habana_frameworks.torch import core as htcore
        from habana_frameworks.torch.hpu.metrics import metric_global
        from habana_frameworks.torch.utils.internal import is_lazy

        self._device = torch.device("hpu", local_index)
        self._hpu: Any = torch.hpu  # type: ignore[attr-defined]
        self._hpu.set_device(self._device)
        self._mark_step = htcore.mark_step
        self._compilations = metric_global("graph_compilation")
        self._is_lazy = bool(is_lazy())
        self.records = True
        self._num_recorded = 0

    @property
    def torch_device(self) -> torch.device:
        return self._device

    def memory(self) -> DeviceMemory:
        self._mark_step()
        free_bytes, total_bytes = self._hpu.mem_get_info()
        return DeviceMemory(free_bytes, total_bytes, self._hpu.memory_stats()["MaxInUse"])

    def reset_peak(self) -> None:
        self._mark_step()
        self._hpu.reset_peak_memory_stats()

    def synchronize(self) -> None:
        self._mark_step()
        self._hpu.synchronize()

    def record_event(self) -> DeviceEvent:
        self._mark_step()
        event: DeviceEvent = self._hpu.Event()
        event.record()  # type: ignore[attr-defined]
        return event

    def download(self, tensor: Tensor) -> HostCopy:
        self._mark_step()
        return super().download(tensor)

    def compile(self, work: CompiledStep, state: DeviceState, inputs: tuple[Tensor, ...]) -> CompiledStep:  # noqa: ARG002
        if not self.records:
            return work
        if self._is_lazy:
            return RecordedStep(work, state, self._mark_step, self._count_recorded)
        return TracedStep(work, state)

    @property
    def num_compiled(self) -> int:
        """Graphs recorded, and recipes compiled for whatever reason, of one shape perhaps both."""
        return self._num_recorded + int(dict(self._compilations.stats())["TotalNumber"])

    def _count_recorded(self) -> None:
        self._num_recorded += 1
