"""TPUs as a backend: core's decoder compiled by XLA, through torchax and jax."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgi_core.contract import (
    AttentionChoice,
    AttentionOption,
    AttentionUse,
    Backend,
    BackendInfo,
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
from tgi_core.errors import ExitCode, StartupError
from tgi_tpu.attention import PADDED, PALLAS, list_options, unfit
from tgi_tpu.probe import probe_devices, runs_on_host

if TYPE_CHECKING:
    from tgi_tpu.device import TpuDevice

_ONE = Ladder(smallest=1 << 30)
"""Only the largest size."""

_TPU_SHAPES = BucketRules(
    # The kernel goes by the rows' real lengths: columns of a table that they do not reach cost nothing.
    prefill_columns=_ONE,
    decode_rows=Ladder(smallest=8),
    decode_blocks=_ONE,
)

_HOST_SHAPES = BucketRules(
    prefill_lengths=Ladder(smallest=16, growth=4),
    prefill_columns=Ladder(smallest=4, growth=8),
    decode_rows=Ladder(growth=4),
    decode_blocks=Ladder(smallest=4, growth=8),
)


class TpuBackend(Backend):
    """Runs models on the TPUs of one host."""

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(
            name="tpu",
            title="TPU (jax, torchax)",
            extra="tpu",
            docs="docs/backends/tpu.md",
            priority=-1 if runs_on_host() else 95,
            simulated=runs_on_host(),
        )

    def probe(self) -> Probe:
        return probe_devices()

    def capabilities(self) -> Capabilities:
        return Capabilities(
            shape_mode=ShapeMode.BUCKETED,
            dtypes=("bfloat16", "float32"),
            block_sizes=(64, 16, 32, 128),
            mixed_batches=False,
            asynchronous=True,
            max_world_size=max(1, len(probe_devices().devices)),
            attention=(PALLAS, PADDED),
            buckets=_HOST_SHAPES if runs_on_host() else _TPU_SHAPES,
        )

    def attention_options(self, use: AttentionUse) -> tuple[AttentionOption, ...]:
        return list_options(use, on_host=runs_on_host())

    def open_device(self, local_index: int) -> Device:  # noqa: ARG002 - jax's first, which is the only one in use
        return self._open(1)

    def kernels(self, device: Device) -> Kernels:
        return self.kernels_for(device, None)

    def kernels_for(self, device: Device, attention: AttentionChoice | None) -> Kernels:
        from tgi_tpu.device import TpuDevice
        from tgi_tpu.kernels import TpuKernels

        assert isinstance(device, TpuDevice)
        return TpuKernels(device, pallas=attention is not None and attention.name == PALLAS)

    def create_shard(self, spec: ShardSpec) -> ModelShard:
        from tgi_core.shards import BucketedShard

        if spec.world_size == 1:
            return super().create_shard(spec)
        _check_division(spec)
        device = self._open(spec.world_size)
        return BucketedShard(spec, self.capabilities(), device, self.kernels_for(device, spec.attention))

    def _open(self, num_devices: int) -> TpuDevice:
        try:
            from tgi_tpu.device import TpuDevice
            from tgi_tpu.opening import open_executor
        except (ImportError, OSError) as error:
            raise StartupError(
                f"jax or torchax cannot be imported ({error}).",
                'Install versions that fit: pip install "tgi-serve[tpu]".',
                ExitCode.BACKEND,
            ) from error
        return TpuDevice(open_executor(num_devices))


def _check_division(spec: ShardSpec) -> None:
    """Refuse a model whose cache cannot be divided among the devices.

    Raises:
        StartupError: it cannot.
    """
    choice, devices = spec.attention, spec.world_size
    assert choice is not None, "there are several implementations"
    for attention in choice.use.specs:
        if attention.num_kv_heads % devices:
            raise StartupError(
                f"The model's {attention.num_kv_heads} key heads cannot be divided among {devices} TPUs.",
                "Use a number of TPUs that divides them.",
                ExitCode.BACKEND,
            )
    reason = unfit(choice.use, devices) if choice.name == PALLAS else ""
    if reason:
        raise StartupError(
            f"Attention `{PALLAS}` cannot be used because {reason}.", f"Use --attention {PADDED}.", ExitCode.BACKEND
        )
