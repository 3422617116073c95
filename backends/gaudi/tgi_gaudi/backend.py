"""Intel Gaudi cards as a backend: static shapes, recorded as HPU graphs."""

from __future__ import annotations

from collections.abc import Mapping

from tgi_core.contract import (
    Backend,
    BackendInfo,
    BackendOption,
    BucketRules,
    Capabilities,
    Device,
    Kernels,
    Ladder,
    ModelShard,
    Probe,
    ShapeMode,
    ShardSpec,
)

FP8 = BackendOption(
    flag="--gaudi-fp8", choices=("off", "dynamic"), help="Multiply linears in 8 bits, with a scale for each token"
)

BUCKETS = BucketRules(
    prefill_rows=Ladder(growth=4),
    prefill_lengths=Ladder(smallest=128, step=128),
    prefill_columns=Ladder(growth=4),
    decode_rows=Ladder(step=32),
    decode_blocks=Ladder(step=128),
    flat_decode=True,
    shapes_share=0.1,
)
"""As the vendor's servers space them: double up to a step, then a line. Of prompts the lengths matter, and their rows
and blocks are further apart."""


class GaudiBackend(Backend):
    """Runs models on one Gaudi 2 or 3."""

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(
            name="gaudi", title="Intel Gaudi (HPU graphs)", extra="gaudi", docs="docs/backends/gaudi.md", priority=85
        )

    def probe(self) -> Probe:
        from tgi_gaudi.probe import probe_devices

        return probe_devices()

    def capabilities(self) -> Capabilities:
        return Capabilities(
            shape_mode=ShapeMode.BUCKETED,
            dtypes=("bfloat16", "float32"),
            # Products over blocks fill the matrix unit from 128 tokens on.
            block_sizes=(128, 16),
            mixed_batches=False,
            asynchronous=True,
            buckets=BUCKETS,
        )

    @property
    def options(self) -> tuple[BackendOption, ...]:
        return (FP8,)

    def process_environment(self) -> Mapping[str, str]:
        return {
            # HPU graphs are recorded in lazy mode alone.
            "PT_HPU_LAZY_MODE": "1",
            # Seeds have 64 bits, of which the card would keep 32.
            "PT_ENABLE_INT64_SUPPORT": "1",
        }

    def open_device(self, local_index: int) -> Device:
        from tgi_gaudi.device import GaudiDevice

        return GaudiDevice(local_index)

    def kernels(self, device: Device) -> Kernels:  # noqa: ARG002 - there is one in a process
        from tgi_gaudi.kernels import GaudiKernels

        return GaudiKernels()

    def create_shard(self, spec: ShardSpec) -> ModelShard:
        from tgi_gaudi.shard import GaudiShard

        device = self.open_device(0)
        fp8 = FP8.value(spec.options) == "dynamic"
        return GaudiShard(spec, self.capabilities(), device, self.kernels(device), fp8=fp8)
