"""Backends with one fault each, and the plugin that offers them. The kit must find every one of them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from tgi_core.contract import Backend, BackendInfo, Capabilities, Device, GraphMode, Kernels
from tgi_core.hookspecs import hookimpl
from tgi_core.testing.reference_backend import ReferenceBackend

SOUND = Capabilities(dtypes=("float32",), asynchronous=True)
RECORDING = replace(SOUND, graph=GraphMode.DECODE)


class Sabotaged(ReferenceBackend):
    """The reference backend with a fault.

    Args:
        name: of the backend.
        kernels, device: names of classes in ``tests.testing.sabotage_kernels``.
        capabilities: what it declares.
    """

    def __init__(
        self, name: str, kernels: str, *, capabilities: Capabilities = SOUND, device: str = "HostDevice"
    ) -> None:
        super().__init__()
        self._name = name
        self._class_names = kernels, device
        self._declared = capabilities

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(name=self._name, title="a backend with a fault", priority=-1, simulated=True)

    def capabilities(self) -> Capabilities:
        return self._declared

    def open_device(self, local_index: int) -> Device:
        from tests.testing import sabotage_kernels

        device: Device = getattr(sabotage_kernels, self._class_names[1])()
        return device

    def kernels(self, device: Device) -> Kernels:
        from tests.testing import sabotage_kernels

        kernels: Kernels = getattr(sabotage_kernels, self._class_names[0])()
        return kernels


BACKENDS = (
    Sabotaged("sound", "ReferenceKernels"),
    Sabotaged("sound-with-graphs", "OnDevice", capabilities=RECORDING, device="GraphDevice"),
    Sabotaged("wrong-rope-half", "WrongRopeHalf"),
    Sabotaged("off-by-one-block", "OffByOneBlock"),
    Sabotaged("ignored-window", "IgnoredWindow"),
    Sabotaged("leaking-block", "LeakingBlock", device="MeasuredDevice"),
    # Products on the host sum by the number of rows that are multiplied together.
    Sabotaged("lying", "ReferenceKernels", capabilities=replace(SOUND, batch_invariant_dtypes=("float32",))),
    Sabotaged("host-sync", "HostSync", capabilities=RECORDING, device="GraphDevice"),
)


@hookimpl
def tgi_backends() -> Iterable[Backend]:
    """All of them."""
    return BACKENDS
