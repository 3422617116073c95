"""NVIDIA GPUs as a backend: Triton kernels, cuBLAS, decode steps as CUDA graphs."""

from __future__ import annotations

from tgi_core.contract import Backend, BackendInfo, Capabilities, Device, GraphMode, Kernels, Probe


class CudaBackend(Backend):
    """Runs models on one NVIDIA GPU of compute capability 8.0 or newer."""

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(
            name="cuda", title="NVIDIA GPU (Triton, cuBLAS)", extra="cuda", docs="docs/backends/cuda.md", priority=100
        )

    def probe(self) -> Probe:
        from tgi_cuda.probe import probe_devices

        return probe_devices()

    def capabilities(self) -> Capabilities:
        return Capabilities(
            graph=GraphMode.DECODE,
            dtypes=("bfloat16", "float16", "float32"),
            # The copy engine fetches tiles of 64 tokens, which must lie within a block.
            block_sizes=(64, 16, 32, 128),
            run_ahead=1,
            asynchronous=True,
        )

    def open_device(self, local_index: int) -> Device:
        from tgi_cuda.device import CudaDevice

        return CudaDevice(local_index)

    def kernels(self, device: Device) -> Kernels:
        from tgi_cuda.kernels import CudaKernels

        return CudaKernels(device.torch_device)
