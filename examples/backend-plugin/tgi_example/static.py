"""A backend whose device compiles, and an option of its own."""

from __future__ import annotations

from tgi_core.contract import (
    BackendInfo,
    BackendOption,
    BucketRules,
    Capabilities,
    Device,
    Kernels,
    Ladder,
    ModelShard,
    ShapeMode,
    ShardSpec,
)
from tgi_example.backend import ExampleBackend

SHAPES = BackendOption(
    flag="--example-static-shapes", choices=("many", "few"), help="Few pad steps more, many take longer to prepare"
)
FEW = BucketRules(flat_decode=True)
MANY = BucketRules(
    prefill_lengths=Ladder(smallest=16, step=64),
    decode_rows=Ladder(step=32),
    decode_blocks=Ladder(smallest=8, step=64),
    flat_decode=True,
)


class StaticBackend(ExampleBackend):
    """The example's device, with a compiler."""

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(name="example-static", title="an example that compiles", priority=-1, simulated=True)

    @property
    def options(self) -> tuple[BackendOption, ...]:
        return (SHAPES,)

    def capabilities(self) -> Capabilities:
        return Capabilities(shape_mode=ShapeMode.BUCKETED, mixed_batches=False, buckets=MANY)

    def open_device(self, local_index: int) -> Device:  # noqa: ARG002 - all devices are the same processor
        from tgi_example.static_device import StaticDevice

        return StaticDevice()

    def kernels(self, device: Device) -> Kernels:  # noqa: ARG002 - they run wherever their tensors lie
        from tgi_core.reference.padded import PaddedKernels

        return PaddedKernels()

    def create_shard(self, spec: ShardSpec) -> ModelShard:
        from msgspec.structs import replace

        from tgi_core.shards import BucketedShard

        buckets = MANY if SHAPES.value(spec.options) == "many" else FEW
        device = self.open_device(0)
        return BucketedShard(spec, replace(self.capabilities(), buckets=buckets), device, self.kernels(device))
