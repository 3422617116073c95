"""The model on a card: core's shard for static shapes, with linears that may have to be quantized first."""

from __future__ import annotations

import os

from tgi_core.contract import Capabilities, Device, Kernels, LoadProgress, ShardSpec
from tgi_core.errors import ExitCode, StartupError
from tgi_core.shards import BucketedShard
from tgi_gaudi.device import GaudiDevice
from tgi_gaudi.kernels import GaudiKernels
from tgi_gaudi.linears import Fp8Linears, Linears
from tgi_gaudi.neural_compressor import CONFIG_VARIABLE, CompressedLinears


class GaudiShard(BucketedShard):
    """Tells the linears when the weights are there, and when the last step has run.

    Args:
        spec: what to build.
        capabilities: of the backend.
        device: of the backend.
        kernels: of the backend.
        fp8: linears multiply in 8 bits, with scales that are found in each step.

    Raises:
        StartupError: two ways to 8 bits are asked for, or the configuration of one cannot be used; or see the base.
    """

    def __init__(
        self, spec: ShardSpec, capabilities: Capabilities, device: Device, kernels: Kernels, *, fp8: bool
    ) -> None:
        assert isinstance(device, GaudiDevice)
        assert isinstance(kernels, GaudiKernels)
        super().__init__(spec, capabilities, device, kernels)
        self._linears = kernels.linears = _choose_linears(os.environ.get(CONFIG_VARIABLE, ""), fp8=fp8)
        # What observers have seen is not part of a recorded graph.
        device.records = not self._linears.measures

    def _load(self, progress: LoadProgress) -> None:
        super()._load(progress)
        self._linears.finish()

    def _release(self) -> None:
        self._linears.close()
        super()._release()


def _choose_linears(config_path: str, *, fp8: bool) -> Linears:
    if config_path and fp8:
        raise StartupError(
            f"--gaudi-fp8 dynamic and {CONFIG_VARIABLE} are two ways to multiply in 8 bits, and both are asked for.",
            f"Leave one of them out: {CONFIG_VARIABLE} has scales that were measured, --gaudi-fp8 needs none.",
            ExitCode.USAGE,
        )
    if config_path:
        return CompressedLinears(config_path)
    return Fp8Linears() if fp8 else Linears()
