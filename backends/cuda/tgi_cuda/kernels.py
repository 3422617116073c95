"""The contract's operations on an NVIDIA GPU."""

from __future__ import annotations

import torch

from tgi_triton import TritonKernels, cuda_tuning


class CudaKernels(TritonKernels):
    """Triton's kernels with the tuning of this GPU; linears of many rows are cuBLAS's."""

    def __init__(self, device: torch.device) -> None:
        properties = torch.cuda.get_device_properties(device)
        super().__init__(device, cuda_tuning(properties.major, properties.minor, properties.multi_processor_count))
        # float32 means float32: TF32 would keep ten bits of a product's operands.
        torch.backends.cuda.matmul.allow_tf32 = False
        # Sums of 16-bit products stay in float32, as the contract says.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
