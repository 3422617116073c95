"""A compiler that compiles nothing and forgives nothing: it holds static-shaped work to what real ones need."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tgi_core.contract import CompiledStep, DeviceState

_ASK_FOR_VALUES = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::nonzero",
        "aten::masked_select",
        "aten::_unique2",
        "aten::unique_consecutive",
        "aten::bincount",
        "aten::repeat_interleave",
        "aten::is_nonzero",
        "aten::equal",
    }
)
"""Operations that read values on the host, or whose results have a shape that depends on values."""

_POISON = {True: float("nan"), False: -(1 << 30)}
"""What tensors hold that were given away: floats and integers."""


class StaticShapesOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, an operation that asks for a value or has a shape of values raises."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation passes here.

        Raises:
            AssertionError: it could not be compiled.
        """
        name = func._schema.name
        if name in _ASK_FOR_VALUES or (name.startswith("aten::index") and _has_mask(args)):
            raise AssertionError(f"{name} asks for values inside of work whose shapes are static")
        return func(*args, **(kwargs or {}))


def _has_mask(args: tuple[Any, ...]) -> bool:
    indices = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
    return any(isinstance(index, Tensor) and index.dtype is torch.bool for index in indices)


class StrictStep:
    """Work compiled for one set of shapes; see ``Device.compile``.

    The state is donated for real: the work runs on copies, and what was given is filled with nonsense.
    """

    def __init__(self, work: CompiledStep, state: DeviceState, inputs: tuple[Tensor, ...]) -> None:
        self._work = work
        self._signature = _signature(state, inputs)

    def __call__(self, state: DeviceState, inputs: tuple[Tensor, ...]) -> tuple[DeviceState, tuple[Tensor, ...]]:
        """Run it.

        Raises:
            AssertionError: the shapes are others than those it was compiled for, or it asks for values.
        """
        signature = _signature(state, inputs)
        assert signature == self._signature, f"compiled for {self._signature}, called with {signature}"
        given = _tensors(state)
        copies = iter([tensor.clone() for tensor in given])
        own = DeviceState(*(_replaced(field, copies) for field in state))
        with StaticShapesOnly():  # type: ignore[no-untyped-call]
            new_state, outputs = self._work(own, inputs)
        # Outputs leave the device's memory of a step: later calls must not find them changed.
        outputs = tuple(tensor.clone() for tensor in outputs)
        for tensor in given:
            if tensor.dtype is torch.bool:
                tensor.logical_not_()
            else:
                tensor.fill_(_POISON[tensor.is_floating_point()])
        return new_state, outputs


def _replaced(field: Any, copies: Any) -> Any:
    return next(copies) if isinstance(field, Tensor) else tuple(next(copies) for _ in field)


def _tensors(state: DeviceState) -> list[Tensor]:
    found: list[Tensor] = []
    for field in state:
        found.extend([field] if isinstance(field, Tensor) else field)
    return found


def _signature(state: DeviceState, inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in (*_tensors(state), *inputs))
