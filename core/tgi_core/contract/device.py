"""One opened device: memory and synchronisation. Everything else torch does through ``torch_device``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    import torch


class DeviceMemory(msgspec.Struct, frozen=True):
    """Memory of a device in bytes: what is free for this process, what there is, the most this process has held."""

    free_bytes: int
    total_bytes: int
    peak_bytes: int


class DeviceEvent(Protocol):
    """A point in the device's work that the host can wait for."""

    def synchronize(self) -> None:
        """Return when the device has passed the point."""


class Device(ABC):
    """An accelerator opened by a backend for this process."""

    @property
    @abstractmethod
    def torch_device(self) -> torch.device:
        """Where tensors are placed."""

    @abstractmethod
    def memory(self) -> DeviceMemory:
        """Measure the device's memory now."""

    @abstractmethod
    def synchronize(self) -> None:
        """Return when everything launched so far has run."""

    def reset_peak(self) -> None:  # noqa: B027 - a device that keeps no peak has nothing to do
        """Let ``memory().peak_bytes`` start anew from what is held now."""

    @property
    def kv_cache_share(self) -> float:
        """Share of the free memory that the KV cache takes when the user names no size.

        1 where the memory is the device's own; less where other programs live in it.
        """
        return 1.0

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A large tensor of zeros. A device whose memory is committed on first use may make it lazily."""
        import torch

        return torch.zeros(shape, dtype=dtype, device=self.torch_device)

    def record_event(self) -> DeviceEvent:
        """Mark the present point of the device's work. The default waits for the whole device."""
        return _WholeDevice(self)


class _WholeDevice:
    """The event of a device that has none of its own."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def synchronize(self) -> None:
        self._device.synchronize()
