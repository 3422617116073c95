"""torch's operations on jax arrays, by torchax: one by one, or a whole step of them as one function for jax.

torchax's own modes are not used: in inference mode, in which shards run, they ignore the device of a copy, and they
lose what is written through most views.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.utils._pytree as pytree
import torchax
import torchax.tensor
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode

from tgi_tpu.arrays import array_dtype, host_tensor, host_values

Operations = dict[Any, Callable[..., jax.Array]]
"""Operations that torchax does not know, as functions of arrays."""

DEVICE = torch.device("jax")
"""Where tensors are that hold arrays."""

_INNER = torch.device("meta")
"""What torch's own code takes for it: a device that it may not look for memory on."""


class ArrayTensor(torchax.tensor.Tensor):  # type: ignore[misc]
    """A tensor that holds a jax array. Operations on it make others.

    Attributes:
        is_copy_of_view: it should be a view of another one, and is a copy.
    """

    is_copy_of_view = False
    # torchax has these give tensors of its own.
    detach = torch.Tensor.detach
    flatten = torch.Tensor.flatten

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation passes here."""
        return _operate(func, args, kwargs or {}, _MISSING)


class ArrayDevice(TorchFunctionMode):
    """Inside, ``DEVICE`` may be named as the place of new tensors and copies; they are made on the host and moved."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every call passes here."""
        kwargs = kwargs or {}
        if any(map(_is_device, (*args, *kwargs.values()))):
            if func is torch.Tensor.to and has_array(args[0]):
                types_asked = [arg for arg in (*args[1:], *kwargs.values()) if isinstance(arg, torch.dtype)]
                return args[0].to(*types_asked) if types_asked else args[0]
            args = ["cpu" if _is_device(arg) else arg for arg in args]
            kwargs = {name: "cpu" if _is_device(arg) else arg for name, arg in kwargs.items()}
            return from_host(func(*args, **kwargs))
        if func is torch.Tensor.__getitem__ and has_array(args[0]):
            # Lists become tensors there, where nobody can tell of which device.
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            parts = tuple(from_host(torch.tensor(part)) if isinstance(part, list) else part for part in parts)
            return func(args[0], parts)
        return _IN_PLACE.get(func, func)(*args, **kwargs)


def enter_device() -> None:
    """Enter ``ArrayDevice`` on this thread, once and for good."""
    if not any(isinstance(mode, ArrayDevice) for mode in _get_current_function_mode_stack()):  # type: ignore[no-untyped-call]
        ArrayDevice().__enter__()  # type: ignore[no-untyped-call]


class _Tracing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, new tensors of the device that traced ones seem to be on hold arrays too.

    Args:
        own: operations of ours.
    """

    def __init__(self, own: Operations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._own = _MISSING | own

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation passes here."""
        kwargs = kwargs or {}
        every = (*args, *kwargs.values())
        if not (has_array(every) or any(value == _INNER for value in every if isinstance(value, torch.device))):
            return func(*args, **kwargs)
        with self:
            return _operate(func, args, kwargs, self._own)


def lowered(work: Callable[..., Any], own: Operations) -> Callable[..., Any]:
    """``work`` as a pure function of nested tuples of arrays: what it writes in place is only in what it returns.

    torch itself takes apart what is written through views.
    """

    def pure(*arrays: Any) -> Any:
        with torch.inference_mode(), _Tracing(own):
            return jax.tree.map(to_array, torch.func.functionalize(work)(*jax.tree.map(to_tensor, arrays)))

    return pure


def _operate(func: Any, args: Any, kwargs: Any, own: Operations) -> Any:
    """One operation.

    Raises:
        NotImplementedError: it writes through a view, which is a copy here.
    """
    if func in own:
        return to_tensor(own[func](*map(to_array, args), **kwargs))
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        # In inference mode torch hands on operations that are made of others.
        return func.decompose(*args, **kwargs)
    if func is torch.ops.aten._to_copy.default:
        return _copied(args[0], kwargs.get("device"), kwargs.get("dtype") or args[0].dtype)
    if func._schema.is_mutable and func is not torch.ops.aten.copy_.default:
        return _in_place(func, args, kwargs)
    result = torchax.default_env().dispatch(func, (), args, kwargs)
    result = pytree.tree_map_only(
        torchax.tensor.Tensor, lambda tensor: args[0] if tensor is args[0] else to_tensor(tensor.jax()), result
    )
    if func.is_view:
        for view in result if isinstance(result, list | tuple) else (result,):
            view.is_copy_of_view = True
    return result


def _copied(tensor: Tensor, device: torch.device | None, dtype: torch.dtype) -> Tensor:
    if not has_array(tensor):
        return from_host(tensor.to(dtype))
    array = to_array(tensor).astype(array_dtype(dtype))
    return to_tensor(array) if device in (None, _INNER) else host_tensor(array)


def _in_place(func: Any, args: Any, kwargs: Any) -> Any:
    target = args[0]
    if target.is_copy_of_view:
        raise NotImplementedError(f"{func.name()} writes through a view, outside of compiled work")
    result = getattr(torch.ops.aten, func.overloadpacket.__name__.removesuffix("_"))(*args, **kwargs)
    target._elem = to_array(result).astype(target.jax().dtype)
    return target


# -- tensors and arrays -----------------------------------------------------------------------------------------------


def to_array(value: Any) -> Any:
    """The array that a tensor holds; other values as they are."""
    return value.jax() if isinstance(value, ArrayTensor) else value


def to_tensor(array: jax.Array) -> Tensor:
    """A tensor that holds the array."""
    tensor: Tensor = ArrayTensor(array, torchax.default_env())
    return tensor


def from_host(tensor: Tensor) -> Tensor:
    """A host tensor's values, wherever jax puts new arrays."""
    return to_tensor(jnp.asarray(host_values(tensor)))


def has_array(value: Any) -> bool:
    """Whether a tensor among nested arguments holds an array."""
    if isinstance(value, list | tuple):
        return any(map(has_array, value))
    return isinstance(value, ArrayTensor)


def _is_device(value: Any) -> bool:
    name = value.type if isinstance(value, torch.device) else value
    return isinstance(name, str) and name == DEVICE.type


# -- what torchax lacks -----------------------------------------------------------------------------------------------


def _bits(array: jax.Array, dtype: torch.dtype) -> jax.Array:
    """An array's bits as numbers of another type, of the same size."""
    return jax.lax.bitcast_convert_type(array, array_dtype(dtype))


def _repeated(repeats: jax.Array, *, output_size: int | None = None) -> jax.Array:
    """Each index as often as its number says, so many in all."""
    return jnp.repeat(jnp.arange(len(repeats)), repeats, total_repeat_length=output_size)


_MISSING: Operations = {
    torch.ops.aten.view.dtype: _bits,
    torch.ops.aten.repeat_interleave.Tensor: _repeated,
}

_IN_PLACE = {
    torch.Tensor.__iand__: torch.Tensor.bitwise_and_,
    torch.Tensor.__ior__: torch.Tensor.bitwise_or_,
    torch.Tensor.__ixor__: torch.Tensor.bitwise_xor_,
}
"""Operators that torch cannot take apart, and the same as functions."""
