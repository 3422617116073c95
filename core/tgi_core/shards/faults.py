"""What a device raises, as errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tgi_core.errors import DeviceLostError, DeviceMemoryError


@contextmanager
def typed_faults() -> Iterator[None]:
    """Around the wait for a step.

    Raises:
        DeviceMemoryError: the step found no memory.
        DeviceLostError: the device has failed.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceMemoryError(str(error)) from error
    except torch.AcceleratorError as error:
        raise DeviceLostError(str(error)) from error
