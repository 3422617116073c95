"""AWS Inferentia 2 and Trainium as a backend: optimum-neuron owns weights, cache and compiled steps."""

from __future__ import annotations

from tgi_core.contract import (
    Backend,
    BackendInfo,
    BackendOption,
    Capabilities,
    Device,
    ModelShard,
    Probe,
    ShapeMode,
    ShardSpec,
)

SAMPLING = BackendOption(
    flag="--neuron-sampling",
    # The default refuses nothing that other backends do.
    choices=("host", "device"),
    help="Who chooses tokens: the host, from logits, or the compiled model, by temperature, top-k and top-p alone",
)


class NeuronBackend(Backend):
    """Runs a model that optimum-neuron has compiled, on the NeuronCores of one machine."""

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(
            name="neuron",
            title="AWS Inferentia 2, Trainium (optimum-neuron)",
            extra="neuron",
            docs="docs/backends/neuron.md",
            priority=70,
        )

    def probe(self) -> Probe:
        from tgi_neuron.probe import probe_cores

        return probe_cores()

    def capabilities(self) -> Capabilities:
        return Capabilities(
            shape_mode=ShapeMode.WHOLE_MODEL,
            dtypes=("bfloat16", "float16", "float32"),
            mixed_batches=False,
            chunked_prefill=False,
            prefix_cache=False,
            sliding_window=False,
            max_world_size=max(1, len(self.probe().devices)),
        )

    @property
    def options(self) -> tuple[BackendOption, ...]:
        return (SAMPLING,)

    def open_device(self, local_index: int) -> Device:  # noqa: ARG002 - the library opens all cores by itself
        from tgi_core.shards.cpu_device import CpuDevice

        # Tensors go in and come out on the host.
        return CpuDevice()

    def create_shard(self, spec: ShardSpec) -> ModelShard:
        from tgi_neuron.shard import NeuronShard

        library_samples = SAMPLING.value(spec.options) == "device"
        return NeuronShard(spec, self.capabilities(), self.open_device(0), library_samples=library_samples)
