"""One opened device: memory and synchronisation. Everything else torch does through ``torch_device``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tgi_core.contract.state import DeviceState


class DeviceMemory(msgspec.Struct, frozen=True):
    """Memory of a device in bytes: what is free for this process, what there is, the most this process has held."""

    free_bytes: int
    total_bytes: int
    peak_bytes: int


class DeviceEvent(Protocol):
    """A point in the device's work that the host can wait for."""

    def synchronize(self) -> None:
        """Return when the device has passed the point."""


class DeviceGraph(Protocol):
    """Work that was recorded once."""

    def replay(self) -> None:
        """Launch the work again, on the tensors it was recorded with."""


class HostCopy(Protocol):
    """A tensor of the device on its way to the host."""

    def read(self) -> Tensor:
        """Its values, on the host. Asked once an event that was recorded after the copy has passed."""


class CompiledStep(Protocol):
    """Work on the device state with static shapes."""

    def __call__(self, state: DeviceState, inputs: tuple[Tensor, ...]) -> tuple[DeviceState, tuple[Tensor, ...]]:
        """The new state, and the outputs. ``state`` is given away: none of its tensors is used after the call.

        A device that writes in place returns the state it was given.
        """


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

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Bring a host tensor to the device. The host does not wait, and may not change the tensor afterwards."""
        from tgi_core.transfer import upload

        return upload(tensor, self.torch_device)

    def download(self, tensor: torch.Tensor) -> HostCopy:
        """Start a copy to the host. What is computed later may overwrite ``tensor``."""
        from tgi_core.transfer import download

        return _HostTensor(download(tensor))

    def capture(self, work: Callable[[], None]) -> DeviceGraph:
        """Record what ``work`` launches. Only asked where ``Capabilities.graph`` says so.

        ``work`` runs once before it is recorded, so that whatever it compiles or allocates lazily exists. All graphs
        share one memory pool: capture the largest first, and replay them one after the other.
        """
        raise NotImplementedError("a device that declares graphs implements capture")

    def compile(self, work: CompiledStep, state: DeviceState, inputs: tuple[Tensor, ...]) -> CompiledStep:  # noqa: ARG002
        """Prepare ``work`` for tensors of exactly these shapes and types. Only asked of bucketed devices.

        ``work`` writes into the state's tensors in place, asks for no values, and its shapes do not depend on any.
        The default runs it as it is. ``state`` and ``inputs`` are not changed.

        Outputs of a call stay as they are until the step that made it is collected, whatever is called meanwhile: a
        device that gives each call of a program the same memory copies them out of it.
        """
        return work

    @property
    def num_compiled(self) -> int:
        """Programs that were compiled so far, whether in ``compile`` or because a call needed one; counts up only."""
        return 0

    def record_event(self) -> DeviceEvent:
        """Mark the present point of the device's work. The default waits for the whole device."""
        return _WholeDevice(self)


class _HostTensor:
    """A copy into the host's own memory."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def read(self) -> Tensor:
        return self._tensor


class _WholeDevice:
    """The event of a device that has none of its own."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def synchronize(self) -> None:
        self._device.synchronize()
