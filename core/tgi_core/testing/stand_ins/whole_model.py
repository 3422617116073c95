"""A device whose library owns the model, on the CPU: one prompt a call, padded batches, slots instead of blocks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tgi_core.contract import (
    Backend,
    BackendInfo,
    Capabilities,
    Device,
    DeviceInfo,
    DeviceMemory,
    ModelShard,
    Probe,
    ShapeMode,
    ShardSpec,
)

if TYPE_CHECKING:
    import torch


class SlotDevice(Device):
    """The host."""

    @property
    def torch_device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    def memory(self) -> DeviceMemory:
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        free_bytes, total_bytes = (page_bytes * os.sysconf(name) for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))
        return DeviceMemory(free_bytes, total_bytes, total_bytes - free_bytes)

    def synchronize(self) -> None:
        """Nothing is under way: the library's calls return when they have run."""


class WholeModelCpuBackend(Backend):
    """Proves the part of the contract that devices with a library of their own use, on every machine."""

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(name="slots-cpu", title="A stand-in for devices that own the whole model", priority=-1)

    def probe(self) -> Probe:
        total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Probe(devices=(DeviceInfo(0, "CPU with slots", total_bytes),))

    def capabilities(self) -> Capabilities:
        return Capabilities(
            shape_mode=ShapeMode.WHOLE_MODEL,
            mixed_batches=False,
            chunked_prefill=False,
            prefix_cache=False,
            sliding_window=False,
        )

    def open_device(self, local_index: int) -> Device:  # noqa: ARG002 - there is one
        return SlotDevice()

    def create_shard(self, spec: ShardSpec) -> ModelShard:
        from tgi_core.testing.stand_ins.slot_shard import SlotShard

        return SlotShard(spec, self.open_device(0))
