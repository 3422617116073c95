"""The reference kernels on the host as a backend: what the conformance kit holds others against. Not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgi_core.contract import (
    Backend,
    BackendInfo,
    Capabilities,
    Device,
    DeviceInfo,
    DeviceMemory,
    Kernels,
    Probe,
)

if TYPE_CHECKING:
    import torch

_MEMORY_BYTES = 4 << 30


class HostDevice(Device):
    """The host, with as much memory as tiny models need; nobody measures it."""

    @property
    def torch_device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    def memory(self) -> DeviceMemory:
        return DeviceMemory(_MEMORY_BYTES, _MEMORY_BYTES, 0)

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""


class ReferenceBackend(Backend):
    """Eager, in every type that the host has, asynchronous only in name: steps run on the caller's thread.

    Args:
        kernels: one that watches the reference; None for the reference itself.
    """

    def __init__(self, kernels: Kernels | None = None) -> None:
        self._kernels = kernels

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(name="reference", title="the reference kernels on the host", priority=-1)

    def probe(self) -> Probe:
        return Probe(devices=(DeviceInfo(0, "host", _MEMORY_BYTES),))

    def capabilities(self) -> Capabilities:
        return Capabilities(dtypes=("float32", "bfloat16", "float16"), block_sizes=(16,), asynchronous=True)

    def open_device(self, local_index: int) -> Device:  # noqa: ARG002 - there is one
        return HostDevice()

    def kernels(self, device: Device) -> Kernels:
        return self._kernels if self._kernels is not None else super().kernels(device)
