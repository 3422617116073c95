"""A bucketed device on the CPU: static shapes, no mixed steps, a state that is given away with every call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tgi_core.contract import (
    Backend,
    BackendInfo,
    BucketRules,
    Capabilities,
    CompiledStep,
    Device,
    DeviceInfo,
    DeviceState,
    Kernels,
    Ladder,
    Probe,
    ShapeMode,
)
from tgi_core.testing.reference_backend import HostDevice

if TYPE_CHECKING:
    from torch import Tensor


class BucketedCpuDevice(HostDevice):
    """The host, and a compiler that is strict about shapes."""

    def __init__(self) -> None:
        self._num_compiled = 0

    @property
    def num_compiled(self) -> int:
        return self._num_compiled

    @property
    def kv_cache_share(self) -> float:
        # Every call copies the whole state.
        return 0.02

    def compile(self, work: CompiledStep, state: DeviceState, inputs: tuple[Tensor, ...]) -> CompiledStep:
        from tgi_core.testing.stand_ins.static_shapes import StrictStep

        self._num_compiled += 1
        return StrictStep(work, state, inputs)


class BucketedCpuBackend(Backend):
    """Proves the part of the contract that compiled devices use, on every machine."""

    @property
    def info(self) -> BackendInfo:
        title = "A stand-in for devices that compile"
        return BackendInfo(name="bucketed-cpu", title=title, priority=-1, simulated=True)

    def probe(self) -> Probe:
        total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Probe(devices=(DeviceInfo(0, "CPU with static shapes", total_bytes),))

    def capabilities(self) -> Capabilities:
        return Capabilities(
            shape_mode=ShapeMode.BUCKETED,
            dtypes=("float32", "bfloat16"),
            mixed_batches=False,
            buckets=BucketRules(
                prefill_lengths=Ladder(smallest=8),
                prefill_columns=Ladder(smallest=2, growth=4),
                decode_blocks=Ladder(smallest=2, growth=4),
            ),
        )

    def open_device(self, local_index: int) -> BucketedCpuDevice:  # noqa: ARG002 - there is one
        return BucketedCpuDevice()

    def kernels(self, device: Device) -> Kernels:  # noqa: ARG002 - any torch device
        from tgi_core.reference.padded import PaddedKernels

        return PaddedKernels()
