"""The contract's operations on an NVIDIA GPU: Triton's kernels with the tuning of this GPU, beside cuBLAS."""

from __future__ import annotations

import torch

from tgi_triton import Tuning, cuda_tuning


def gpu_tuning(device: torch.device) -> Tuning:
    """The tuning of this GPU."""
    properties = torch.cuda.get_device_properties(device)
    return cuda_tuning(properties.major, properties.minor, properties.multi_processor_count)
