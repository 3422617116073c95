"""A device whose library owns the model, on the CPU: one prompt a call, padded batches, slots instead of blocks."""

from __future__ import annotations

import os

from tgi_core.contract import (
    Backend,
    BackendInfo,
    BackendOption,
    Capabilities,
    Device,
    DeviceInfo,
    ModelShard,
    Probe,
    ShapeMode,
    ShardSpec,
)
from tgi_core.testing.reference_backend import HostDevice

SAMPLING = BackendOption(
    flag="--slots-cpu-sampling",
    choices=("host", "device"),
    help="Who chooses tokens: the host, which can do everything, or the library, by temperature, top-k and top-p",
)


class WholeModelCpuBackend(Backend):
    """Proves the part of the contract that devices with a library of their own use, on every machine."""

    @property
    def info(self) -> BackendInfo:
        title = "A stand-in for devices that own the whole model"
        return BackendInfo(name="slots-cpu", title=title, priority=-1, simulated=True)

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

    @property
    def options(self) -> tuple[BackendOption, ...]:
        return (SAMPLING,)

    def open_device(self, local_index: int) -> Device:  # noqa: ARG002 - there is one
        return HostDevice()

    def create_shard(self, spec: ShardSpec) -> ModelShard:
        from tgi_core.testing.stand_ins.slot_shard import SlotShard

        library_samples = SAMPLING.value(spec.options) == "device"
        return SlotShard(spec, self.capabilities(), self.open_device(0), library_samples=library_samples)
