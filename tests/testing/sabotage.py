"""Backends with one fault each, and the plugin that offers them. The kit must find every one of them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from tgi_core.contract import (
    Backend,
    BackendInfo,
    BucketRules,
    Capabilities,
    Device,
    GraphMode,
    Kernels,
    Ladder,
    ModelShard,
    Probe,
    ShapeMode,
    ShardSpec,
)
from tgi_core.hookspecs import hookimpl
from tgi_core.testing.reference_backend import ReferenceBackend

SOUND = Capabilities(dtypes=("float32",), asynchronous=True)
RECORDING = replace(SOUND, graph=GraphMode.DECODE)
BUCKETED = replace(
    SOUND,
    shape_mode=ShapeMode.BUCKETED,
    mixed_batches=False,
    buckets=BucketRules(
        prefill_lengths=Ladder(smallest=8, growth=8),
        decode_rows=Ladder(smallest=4, growth=8),
        decode_blocks=Ladder(smallest=8, growth=8),
        flat_decode=True,
    ),
)
"""With shapes that lie far apart, and so are few."""

WHOLE_MODEL = Capabilities(shape_mode=ShapeMode.WHOLE_MODEL)
"""With defaults that no library of whole models can keep."""


class Sabotaged(ReferenceBackend):
    """The reference backend with a fault.

    Args:
        name: of the backend.
        kernels, device: names of classes in ``tests.testing.sabotage_kernels``.
        capabilities: what it declares.
        shard: name of a class in ``tests.testing.sabotage_shards``, put around the core's shard.
    """

    def __init__(
        self,
        name: str,
        kernels: str = "ReferenceKernels",
        *,
        capabilities: Capabilities = SOUND,
        device: str = "HostDevice",
        shard: str = "",
    ) -> None:
        super().__init__()
        self._name = name
        self._shard_name = shard
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

    def create_shard(self, spec: ShardSpec) -> ModelShard:
        from tests.testing import sabotage_shards

        shard = super().create_shard(spec)
        if self._shard_name:
            shard = getattr(sabotage_shards, self._shard_name)(shard)
        return shard


class RaisingProbe(Sabotaged):
    """Does not find its driver, and says so by an exception."""

    def probe(self) -> Probe:
        raise OSError("no driver")


class RaisingCapabilities(Sabotaged):
    """Finds a device that it cannot describe."""

    def capabilities(self) -> Capabilities:
        raise OSError("an unknown device")


class LyingWholeModel(Sabotaged):
    """Declares for a library of whole models what only blocks can do."""

    def create_shard(self, spec: ShardSpec) -> ModelShard:
        from tgi_core.testing.stand_ins.slot_shard import SlotShard

        return SlotShard(spec, self.capabilities(), self.open_device(0))


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
    Sabotaged("ignored-offset", "IgnoredOffset"),
    Sabotaged("unseeded", "Unseeded"),
    Sabotaged("half-a-seed", "HalfASeed"),
    Sabotaged("copied-keys", "CopiedKeys"),
    Sabotaged("reads-past-rows", "ReadsPastRows"),
    Sabotaged("small-peak", device="SmallPeakDevice"),
    Sabotaged("samples-late", shard="SamplesLate"),
    Sabotaged("wrong-alternatives", shard="WrongAlternatives"),
    Sabotaged("harmful-idle-time", shard="HarmfulIdleTime"),
    Sabotaged("sound-with-flat-decodes", "PaddedKernels", capabilities=BUCKETED, device="BucketedCpuDevice"),
    Sabotaged("ignored-owners", "IgnoredOwners", capabilities=BUCKETED, device="BucketedCpuDevice"),
    Sabotaged("recompiling", "PaddedKernels", capabilities=BUCKETED, device="RecompilingDevice"),
    Sabotaged("shared-outputs", "PaddedKernels", capabilities=BUCKETED, device="SharedOutputs"),
    Sabotaged("uncounting", "PaddedKernels", capabilities=BUCKETED, device="UncountingDevice"),
    RaisingProbe("raising-probe"),
    RaisingCapabilities("raising-capabilities"),
    LyingWholeModel("lying-whole-model", capabilities=WHOLE_MODEL),
)


@hookimpl
def tgi_backends() -> Iterable[Backend]:
    """All of them."""
    return BACKENDS
