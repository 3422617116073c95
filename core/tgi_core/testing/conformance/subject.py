"""The backend under test, as the tests see it."""

from __future__ import annotations

from functools import cached_property

import torch

from tgi_core.contract import Backend, Capabilities, Device, Kernels, Probe, ShapeMode
from tgi_core.errors import StartupError
from tgi_core.plugins import ask_capabilities, find_devices


class Subject:
    """One backend with what the tests ask it again and again.

    Attributes:
        backend: it.
        quick: fewer shapes, models and requests.
    """

    def __init__(self, backend: Backend, *, quick: bool) -> None:
        self.backend = backend
        self.quick = quick

    @property
    def name(self) -> str:
        """Of the backend."""
        return self.backend.info.name

    @cached_property
    def capabilities(self) -> Capabilities:
        """As declared; nothing is declared where no device is found."""
        return self.backend.capabilities() if self.probe.devices else Capabilities()

    @cached_property
    def probe(self) -> Probe:
        """What it finds: nothing where asking for devices or for capabilities raises."""
        probe = find_devices(self.backend)
        if probe.devices:
            try:
                ask_capabilities(self.backend)
            except StartupError as error:
                return Probe(reason=error.cause, fix=error.fix)
        return probe

    @property
    def has_kernels(self) -> bool:
        """Whether there are operations to look at, and not only whole models."""
        return self.capabilities.shape_mode is not ShapeMode.WHOLE_MODEL

    @cached_property
    def device(self) -> Device:
        """The first device."""
        return self.backend.open_device(0)

    @property
    def torch_device(self) -> torch.device:
        """Where tensors lie."""
        return self.device.torch_device

    @cached_property
    def kernels(self) -> Kernels:
        """The backend's own operations."""
        return self.backend.kernels(self.device)

    @property
    def exact_dtype(self) -> str:
        """The type in which results are compared most strictly: float32 where the backend has it."""
        dtypes = self.capabilities.dtypes
        return "float32" if "float32" in dtypes else dtypes[0]

    @property
    def head_dim(self) -> int:
        """Head size of tiny models."""
        return min(self.capabilities.head_dims, default=16)
