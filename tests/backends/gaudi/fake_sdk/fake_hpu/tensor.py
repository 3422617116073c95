"""Tensors on the card. What torch does with them passes here, one operation of ATen at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from fake_hpu.machine import MACHINE, Block, HpuError
from fake_hpu.tape import Tape, signature

DEVICE = torch.device("hpu", 0)
_HOST = torch.device("cpu")

_DYNAMIC = frozenset(
    {"nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim", "bincount", "repeat_interleave"}
)
"""Operations whose results have a shape that depends on values."""

_READS = frozenset({"_local_scalar_dense", "is_nonzero", "equal"})

_SAME = frozenset({"detach", "detach_", "alias", "lift_fresh"})
"""Views of everything: not what is meant by a view."""


class HpuTensor(torch.Tensor):
    """A tensor of device "hpu".

    Attributes:
        host: its numbers.
        block: the allocation they lie in.
        is_view: made as a view of another tensor.
        tape, slot: the graph whose recording made it, and where.
        is_stale: it was in the middle of a graph whose recording is over.
    """

    host: torch.Tensor
    block: Block
    is_view: bool
    tape: Tape | None
    slot: int
    is_stale: bool

    @staticmethod
    def __new__(cls, host: torch.Tensor, *, is_view: bool = False) -> HpuTensor:
        made: HpuTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=DEVICE,
            requires_grad=False,
        )
        made.host, made.is_view, made.tape, made.slot, made.is_stale = host, is_view, None, -1, False
        made.block = MACHINE.block_of(host)
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __repr__(self) -> str:
        return f"HpuTensor({list(self.shape)}, {self.dtype})"

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.host.untyped_storage()

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def tolist(self) -> Any:
        # Torch's own takes no subclass.
        return self.cpu().tolist()

    def pin_memory(self, device: Any = None) -> torch.Tensor:
        raise HpuError("a tensor of the device cannot be pinned")

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


def _dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = func._schema.name.partition("::")[2]
    # In inference mode what torch composes of other operations comes here as a whole.
    if _is_composed(func):
        return func.decompose(*args, **kwargs)
    if name in _READS:
        MACHINE.read(name)
        return func(*_hosts(args), **kwargs)
    if name in _DYNAMIC or (name in ("index", "index_put_", "index_put") and _has_mask(args[1])):
        MACHINE.read(f"{name}, whose shape depends on values")
        return _wrap(func(*_hosts(args), **kwargs), is_view=False)
    if name == "_to_copy":
        return _to_copy(func, args[0], kwargs)
    if name == "copy_" and not all(isinstance(tensor, HpuTensor) or not tensor.dim() for tensor in args[:2]):
        return _copy_across(*args[:2])
    return _compute(func, name, args, kwargs)


@cache
def _is_composed(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _to_copy(func: Any, source: torch.Tensor, kwargs: dict[str, Any]) -> Any:
    """A new tensor, here or there."""
    asked = kwargs.get("device")
    options = {key: kwargs[key] for key in ("dtype", "memory_format") if kwargs.get(key) is not None}
    if isinstance(source, HpuTensor) and (asked is None or asked.type == "hpu"):
        return _compute(func, "_to_copy", (source,), options)
    if isinstance(source, HpuTensor):
        if kwargs.get("non_blocking"):
            return MACHINE.send(source.host.to(**options))
        MACHINE.read("a copy to the host")
        return source.host.to(**options, copy=True)
    return upload(source.to(**options, copy=True))


def upload(host: torch.Tensor) -> HpuTensor:
    """Bring numbers to the card."""
    MACHINE.forbid_recording("a copy from the host")
    return HpuTensor(_kept(host))


def _kept(host: torch.Tensor) -> torch.Tensor:
    """What of numbers arrives on the card."""
    if host.dtype is torch.int64 and not MACHINE.has_int64:
        return host.to(torch.int32).to(torch.int64)
    return host


def _copy_across(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    if isinstance(target, HpuTensor):
        MACHINE.forbid_recording("a copy from the host")
        target.host.copy_(_kept(source))
    else:
        assert isinstance(source, HpuTensor)
        MACHINE.read("a copy to the host")
        target.copy_(source.host)
    return target


def _compute(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation among tensors of the card."""
    if kwargs.get("pin_memory"):
        raise HpuError(f"{name} asks for pinned memory")
    kwargs = {key: _HOST if key == "device" and value is not None else value for key, value in kwargs.items()}
    tape, arguments = MACHINE.recording, func._schema.arguments
    changed: list[HpuTensor] = []
    for index, argument in enumerate(arguments):
        value = args[index] if index < len(args) else kwargs.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write and value is not None:
            changed += value if isinstance(value, (list, tuple)) else [value]
    if tape is not None:
        for tensor in changed:
            if tensor.is_view and tensor.block.tape is not tape:
                raise HpuError(f"{name} changes a view of an outside tensor in place, which no graph records")
            tape.will_change(tensor.host, tensor.block)
    result = func(*_hosts(args), **_hosts(kwargs))
    if changed:
        if any(tensor.host.shape != tensor.shape for tensor in changed):
            raise HpuError(f"{name} changes a shape in place")
        made: list[HpuTensor] = []
        answer: Any = None if not func._schema.returns else changed[0] if len(changed) == 1 else tuple(changed)
    else:
        returns = func._schema.returns
        is_view = bool(returns) and returns[0].alias_info is not None and name not in _SAME
        if name in _SAME and isinstance(args[0], HpuTensor):
            is_view = args[0].is_view
        answer = _wrap(result, is_view=is_view)
        made = [answer] if isinstance(answer, HpuTensor) else list(answer)
    if tape is not None:
        tape.record(func, args, kwargs, made)
    elif not (made and made[0].is_view) and name not in _SAME:
        MACHINE.launch((str(func), signature(_hosts(args)), signature(list(kwargs.values()))))
    return answer


def create(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HpuTensor:
    """A tensor that is made on the card out of nothing."""
    made = HpuTensor(func(*args, **kwargs))
    if MACHINE.recording is not None:
        MACHINE.recording.record(func, args, kwargs, [made])
    elif "empty" not in str(func):
        MACHINE.launch((str(func), repr(args), repr(kwargs)))
    return made


def _hosts(values: Any) -> Any:
    """Arguments as the host's own operations take them.

    Raises:
        HpuError: a tensor lies on the host. Only numbers may.
    """
    if isinstance(values, HpuTensor):
        if values.is_stale:
            raise HpuError("a tensor is used that a graph had while it was recorded, and that is none of its outputs")
        return values.host
    if isinstance(values, torch.Tensor):
        if values.dim():
            raise HpuError(f"Expected all tensors to be on hpu:0, but one of shape {list(values.shape)} is on the host")
        return values
    if isinstance(values, dict):
        return {key: _hosts(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return type(values)(_hosts(value) for value in values) if type(values) is not torch.Size else values
    return values


def _wrap(result: Any, *, is_view: bool) -> Any:
    if isinstance(result, torch.Tensor):
        return HpuTensor(result, is_view=is_view)
    return tuple(HpuTensor(one, is_view=is_view) for one in result)


def _has_mask(indices: Sequence[Any]) -> bool:
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


def register_factories() -> torch.library.Library:
    """What torch calls to make tensors on device "hpu"; the library must be kept."""
    library = torch.library.Library("aten", "IMPL")
    for name in ("empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step"):
        library.impl(name, _factory(name), "HPU")
    library.impl("_copy_from", _copy_from, "HPU")
    return library


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """What ``torch.tensor(..., device="hpu")`` copies with."""
    return _copy_across(target, source)


def _factory(name: str) -> Any:
    base, _, overload = name.partition(".")
    func = getattr(getattr(torch.ops.aten, base), overload or "default")

    def make(*args: Any, **kwargs: Any) -> HpuTensor:
        if kwargs.pop("pin_memory", None):
            raise HpuError(f"{name} asks for pinned memory")
        return create(func, args, {**kwargs, "device": _HOST})

    return make
