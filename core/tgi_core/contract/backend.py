"""A backend: identity, detection and construction for one accelerator family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from tgi_core.contract.capabilities import Capabilities, ShapeMode

if TYPE_CHECKING:
    from tgi_core.contract.attention import AttentionChoice, AttentionOption, AttentionUse
    from tgi_core.contract.device import Device
    from tgi_core.contract.kernels import Kernels
    from tgi_core.contract.shard import ModelShard, ShardSpec


class BackendInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Pure data about a backend.

    Attributes:
        name: what ``--backend`` takes.
        title: one line for people.
        extra: the pip extra that installs what it needs, or "".
        docs: path or address of its documentation.
        contract_version: the contract it was written for.
        priority: ``--backend auto`` takes the usable backend with the highest priority; negative is never taken.
        simulated: its devices are stand-ins on the host: what works on them is not verified on hardware.
    """

    name: str
    title: str
    extra: str = ""
    docs: str = ""
    contract_version: int = 0
    priority: int = 0
    simulated: bool = False


class DeviceInfo(msgspec.Struct, frozen=True):
    """A device that a probe found: its index, its name and its memory in bytes."""

    index: int
    name: str
    memory_bytes: int


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe found: devices, or the reason there are none and what would help."""

    devices: tuple[DeviceInfo, ...] = ()
    reason: str = ""
    fix: str = ""


class BackendOption(msgspec.Struct, frozen=True, kw_only=True):
    """An option of the command line that one backend adds; it is an error with any other.

    Attributes:
        flag: begins with the backend's name, such as "--neuron-sampling". The environment variable is the same in
            capitals, NEURON_SAMPLING, and also TGI_SERVE_NEURON_SAMPLING.
        choices: the values it takes, the default first; at least one.
        help: one line.
    """

    flag: str
    choices: tuple[str, ...]
    help: str

    def value(self, options: Mapping[str, str]) -> str:
        """What ``ShardSpec.options`` holds for it: one of ``choices``, the default where it was not given."""
        return options.get(self.flag, self.choices[0])


class Backend(ABC):
    """What a plugin returns from ``tgi_backends``. Constructing one imports no vendor SDK.

    Only ``info``, ``probe``, ``capabilities`` and ``open_device`` must be written: the reference kernels and the
    core's shard then already serve correct tokens. Speed is added by overriding kernels one at a time.
    """

    @property
    @abstractmethod
    def info(self) -> BackendInfo:
        """Who this is."""

    @abstractmethod
    def probe(self) -> Probe:
        """Look for devices. Never raises."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What the devices can do."""

    @property
    def options(self) -> tuple[BackendOption, ...]:
        """Options of its own; ``ShardSpec.options`` holds those that were given. Imports no vendor SDK."""
        return ()

    def process_environment(self) -> Mapping[str, str]:
        """Environment variables that an engine process must be started with; one that is set already is left alone."""
        return {}

    @abstractmethod
    def open_device(self, local_index: int) -> Device:
        """Open a device for this process."""

    def kernels(self, device: Device) -> Kernels:  # noqa: ARG002 - the reference runs on any torch device
        """The operations on ``device``; the reference unless a backend has faster ones."""
        from tgi_core.reference import ReferenceKernels

        return ReferenceKernels()

    def attention_options(self, use: AttentionUse) -> tuple[AttentionOption, ...]:
        """Every implementation of ``Capabilities.attention`` for this use, in the order in which "auto" tries them.

        Asked only of a backend that declares more than one. Imports no library but torch.
        """
        raise NotImplementedError("a backend that declares several implementations of attention tells them apart")

    def kernels_for(self, device: Device, attention: AttentionChoice | None) -> Kernels:  # noqa: ARG002 - there is one
        """``kernels`` with the chosen implementation of attention; None for the backend's own."""
        return self.kernels(device)

    def create_shard(self, spec: ShardSpec) -> ModelShard:
        """Build the model's shard: core's, for any shape or for static ones.

        A backend whose library owns the whole model returns its own, such as a ``tgi_core.shards.WholeModelShard``.
        """
        from tgi_core.shards import BucketedShard, EagerShard

        device, capabilities = self.open_device(0), self.capabilities()
        kernels = self.kernels_for(device, spec.attention)
        if capabilities.shape_mode is ShapeMode.BUCKETED:
            return BucketedShard(spec, capabilities, device, kernels)
        return EagerShard(spec, capabilities, device, kernels)
