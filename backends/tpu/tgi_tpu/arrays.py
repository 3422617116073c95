"""Values of torch's host tensors as jax's arrays, and back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy
import torch
from torch import Tensor

_BFLOAT16 = jnp.dtype("bfloat16")
"""torch and numpy exchange it as the bits of int16."""


def host_values(tensor: Tensor) -> numpy.ndarray[Any, Any]:
    """A host tensor's values; the same memory."""
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(_BFLOAT16)
    return tensor.numpy()


def host_tensor(array: jax.Array) -> Tensor:
    """A host tensor with the array's values, which are waited for."""
    # A copy: torch asks for memory that it may write to.
    values = numpy.array(array)
    if values.dtype == _BFLOAT16:
        return torch.from_numpy(values.view(numpy.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def array_dtype(dtype: torch.dtype) -> Any:
    """torch's type as jax's."""
    return jnp.dtype(str(dtype).removeprefix("torch."))
