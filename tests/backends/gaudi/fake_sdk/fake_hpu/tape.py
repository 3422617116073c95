"""A recorded graph: operations with what they read and write, run again without the Python that launched them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import torch

from fake_hpu.machine import MACHINE, Block, HpuError, poison

if TYPE_CHECKING:
    from fake_hpu.tensor import HpuTensor


class _Place(NamedTuple):
    """Where an operation's arguments have a tensor that the graph makes: an argument, or an element of a list."""

    argument: int | str
    element: int | None
    slot: int


class _Entry(NamedTuple):
    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    places: Sequence[_Place]
    makes: Sequence[int]
    frees: Sequence[int]


class Tape:
    """What one graph does.

    Args:
        is_dry: nothing runs for real while it is recorded: what it changed is put back at the end.
    """

    def __init__(self, *, is_dry: bool) -> None:
        self._is_dry = is_dry
        self._entries: list[_Entry] = []
        self._num_slots = 0
        self._inputs: list[int] = []
        self._alive: WeakSet[HpuTensor] = WeakSet()
        self._outputs: list[HpuTensor] = []
        self._undo: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._workspace_bytes = 0
        self._before: tuple[int, int] = (0, 0)

    # -- recording ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._before = MACHINE.in_use_bytes, MACHINE.peak_bytes
        MACHINE.peak_bytes = MACHINE.in_use_bytes

    def mark_input(self, tensor: HpuTensor) -> None:
        """Bound anew at every replay."""
        self._inputs.append(self._add(tensor))

    def slot_of(self, tensor: HpuTensor) -> int | None:
        """The slot of what this graph makes; None for a tensor from outside."""
        return tensor.slot if tensor.tape is self else None

    def record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Sequence[HpuTensor]) -> None:
        """Note an operation; ``made`` are its new tensors."""
        places: list[_Place] = []
        host_args = [self._take(value, index, places) for index, value in enumerate(args)]
        host_kwargs = {name: self._take(value, name, places) for name, value in kwargs.items()}
        slots = [self._add(tensor) for tensor in made]
        self._entries.append(_Entry(func, tuple(host_args), host_kwargs, places, slots, ()))

    def will_change(self, host: torch.Tensor, block: Block) -> None:
        """Keep what a dry run must put back."""
        storage = host.untyped_storage()
        if self._is_dry and block.tape is not self and storage._cdata not in self._undo:
            self._undo[storage._cdata] = (storage, storage.clone())

    def end(self) -> None:
        """Everything that is still alive is an output, unless ``keep`` says which ones are."""
        for storage, saved in self._undo.values():
            storage.copy_(saved)
        self._undo.clear()
        inputs = set(self._inputs)
        outputs = [tensor for tensor in self._alive if tensor.slot not in inputs]
        # Parts of what lies outside, such as a view of a cache, need no second copy.
        self._outputs = sorted((one for one in outputs if one.block.tape is self and _is_whole(one.host)), key=_slot)
        self._workspace_bytes = MACHINE.peak_bytes - self._before[0]
        MACHINE.peak_bytes = max(MACHINE.peak_bytes, self._before[1])
        self._free_early()
        MACHINE.captures += 1
        MACHINE.compile(tuple(self._signature(entry) for entry in self._entries))
        if self._is_dry:
            self._poison()

    def keep(self, outputs: Sequence[HpuTensor]) -> None:
        """These are the outputs; what else is still alive must not be used any more."""
        kept = {id(tensor) for tensor in outputs}
        for tensor in self._alive:
            tensor.is_stale = id(tensor) not in kept and tensor.slot not in set(self._inputs)
        self._outputs = sorted((one for one in self._outputs if id(one) in kept), key=_slot)
        self._free_early()

    def _add(self, tensor: HpuTensor) -> int:
        tensor.tape, tensor.slot = self, self._num_slots
        self._num_slots += 1
        self._alive.add(tensor)
        return tensor.slot

    def _take(self, value: Any, argument: int | str, places: list[_Place]) -> Any:
        from fake_hpu.tensor import HpuTensor

        if isinstance(value, (list, tuple)):
            return [self._take_one(one, argument, index, places) for index, one in enumerate(value)]
        return self._take_one(value, argument, None, places) if isinstance(value, HpuTensor) else value

    def _take_one(self, value: Any, argument: int | str, element: int | None, places: list[_Place]) -> Any:
        from fake_hpu.tensor import HpuTensor

        if not isinstance(value, HpuTensor):
            return value
        slot = self.slot_of(value)
        if slot is None:
            return value.host
        places.append(_Place(argument, element, slot))
        return None

    def _free_early(self) -> None:
        kept = {tensor.slot for tensor in self._outputs}
        seen: set[int] = set()
        for index in reversed(range(len(self._entries))):
            entry = self._entries[index]
            used = {place.slot for place in entry.places} | set(entry.makes)
            self._entries[index] = entry._replace(frees=[slot for slot in used - seen if slot not in kept])
            seen |= used

    @staticmethod
    def _signature(entry: _Entry) -> object:
        return (str(entry.func), *(signature(value) for value in (*entry.args, *entry.kwargs.values())), *entry.places)

    # -- replaying ----------------------------------------------------------------------------------------------------

    def replay(self, inputs: Sequence[HpuTensor]) -> None:
        """Run it again.

        Raises:
            HpuError: the inputs are not those that were marked, or have other shapes.
        """
        if len(inputs) != len(self._inputs):
            raise HpuError(f"{len(self._inputs)} inputs were marked, and {len(inputs)} are given")
        MACHINE.need_workspace(self._workspace_bytes)
        self._poison()
        env: list[torch.Tensor | None] = [None] * self._num_slots
        for slot, tensor in zip(self._inputs, inputs, strict=True):
            env[slot] = tensor.host
        for entry in self._entries:
            args, kwargs = list(entry.args), dict(entry.kwargs)
            for argument, element, slot in entry.places:
                holder: Any = kwargs if isinstance(argument, str) else args
                if element is None:
                    holder[argument] = env[slot]
                else:
                    holder[argument] = [*holder[argument][:element], env[slot], *holder[argument][element + 1 :]]
            result = entry.func(*args, **kwargs)
            if entry.makes:
                made = [result] if isinstance(result, torch.Tensor) else result
                for slot, host in zip(entry.makes, made, strict=True):
                    env[slot] = host
            for slot in entry.frees:
                env[slot] = None
        for tensor in self._outputs:
            made_host = env[tensor.slot]
            assert made_host is not None
            tensor.host.copy_(made_host)

    def _poison(self) -> None:
        """Whoever still holds the last replay's outputs is to notice."""
        for tensor in self._outputs:
            poison(tensor.host)


def _slot(tensor: HpuTensor) -> int:
    return tensor.slot


def _is_whole(host: torch.Tensor) -> bool:
    """Whether each number lies in a place of its own."""
    return all(stride or size == 1 for size, stride in zip(host.shape, host.stride(), strict=True))


def signature(value: Any) -> object:
    """What of an argument makes another recipe: shapes and types of tensors, everything else by value."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(signature(one) for one in value)
    return repr(value)
