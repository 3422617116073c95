"""Notices where work that is to be recorded asks the device for values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_READS = frozenset(
    {
        "__bool__",
        "__contains__",
        "__float__",
        "__index__",
        "__int__",
        "allclose",
        "argwhere",
        "cpu",
        "equal",
        "item",
        "masked_select",
        "nonzero",
        "numpy",
        "tolist",
        "unique",
    }
)
"""Calls whose result, or the shape of it, depends on values: the host must wait for them."""


class HostReads(TorchFunctionMode):
    """While it is entered, notes the calls that wait for the device.

    Only tensors that lie on ``device`` count; with the host as device every tensor does.

    Args:
        device: the one that would be waited for.
        found: takes the names of the calls, in order.
    """

    def __init__(self, device: torch.device, found: list[str]) -> None:
        super().__init__()
        self.found = found
        self._device_type = device.type

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Note the call and go on."""
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if name in _READS and isinstance(first, torch.Tensor) and first.device.type == self._device_type:
            self.found.append(name)
        return func(*args, **(kwargs or {}))
