"""The card's state: its memory, what waits to be launched, what is compiled, and which graph is being recorded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch

if TYPE_CHECKING:
    from fake_hpu.tape import Tape

MEMORY_VARIABLE = "TGI_FAKE_HPU_MEMORY_BYTES"
LAZY_VARIABLE, INT64_VARIABLE = "PT_HPU_LAZY_MODE", "PT_ENABLE_INT64_SUPPORT"


class HpuError(RuntimeError):
    """A rule of the device is broken."""


class Block:
    """One allocation; given back when the last tensor over it goes.

    Args:
        machine: whose memory.
        size_bytes: of it.
        tape: the graph whose recording made it; None outside.
    """

    def __init__(self, machine: Machine, size_bytes: int, tape: Tape | None) -> None:
        self._machine = machine
        self.size_bytes = size_bytes
        self.tape = tape
        machine.take(size_bytes)

    def __del__(self) -> None:
        self._machine.give(self.size_bytes)


class Machine:
    """One card.

    Args:
        total_bytes: its memory.
        is_lazy: operations wait for a mark step; otherwise they run one by one, and no graph can be recorded.
        has_int64: numbers of 64 bits are kept; otherwise they are cut to 32.

    Attributes:
        recording: the graph that is being recorded.
        captures: graphs recorded so far. compilations: recipes compiled so far.
        reads: times that the host has waited for values.
    """

    def __init__(self, total_bytes: int, *, is_lazy: bool, has_int64: bool) -> None:
        self.total_bytes = total_bytes
        self.is_lazy = is_lazy
        self.has_int64 = has_int64
        self.recording: Tape | None = None
        self.captures = 0
        self.compilations = 0
        self.reads = 0
        self.in_use_bytes = 0
        self.peak_bytes = 0
        self._blocks: WeakValueDictionary[int, Block] = WeakValueDictionary()
        self._pending: list[object] = []
        self._recipes: set[object] = set()
        self._on_their_way: list[tuple[torch.Tensor, torch.Tensor]] = []

    # -- memory -------------------------------------------------------------------------------------------------------

    def take(self, size_bytes: int) -> None:
        """Raises torch's error where the card is full."""
        if self.in_use_bytes + size_bytes > self.total_bytes:
            free_bytes = self.total_bytes - self.in_use_bytes
            self.in_use_bytes += size_bytes  # given back by the block, which dies of this
            raise torch.OutOfMemoryError(f"{size_bytes} bytes are asked for, and {free_bytes} are free")
        self.in_use_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.in_use_bytes)

    def give(self, size_bytes: int) -> None:
        self.in_use_bytes -= size_bytes

    def need_workspace(self, size_bytes: int) -> None:
        """A replayed graph needs so much while it runs."""
        self.take(size_bytes)
        self.give(size_bytes)

    def block_of(self, host: torch.Tensor) -> Block:
        """The allocation that a tensor's numbers lie in."""
        storage = host.untyped_storage()
        key = storage._cdata
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = Block(self, storage.nbytes(), self.recording)
        return block

    # -- lazy mode ----------------------------------------------------------------------------------------------------

    def launch(self, operation: object) -> None:
        """An operation outside of recorded graphs."""
        if self.is_lazy:
            self._pending.append(operation)

    def mark_step(self) -> None:
        """Compile what waits, unless the same has been compiled before, and run it."""
        if self._pending:
            self.compile(tuple(self._pending))
            self._pending.clear()

    def compile(self, recipe: object) -> None:
        """Compile a recipe once."""
        if recipe not in self._recipes:
            self._recipes.add(recipe)
            self.compilations += 1

    def read(self, what: str) -> None:
        """The host waits for values: what waits to be launched is launched before.

        Raises:
            HpuError: a graph is being recorded.
        """
        self.forbid_recording(f"{what}: the host reads values")
        self.reads += 1
        self.mark_step()

    def send(self, host: torch.Tensor) -> torch.Tensor:
        """Numbers on their way to the host: they are there once an event, recorded after this, has been waited for."""
        self.forbid_recording("a copy to the host")
        self.need_mark_step("a copy to the host begins")
        target = torch.empty_like(host)
        poison(target)
        self._on_their_way.append((target, host.clone()))
        return target

    def take_sent(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What has been sent so far; whoever waits has it arrive."""
        sent, self._on_their_way = self._on_their_way, []
        return sent

    def forbid_recording(self, what: str) -> None:
        """Raises HpuError while a graph is being recorded."""
        if self.recording is not None:
            raise HpuError(f"{what} while a graph is recorded")

    def need_mark_step(self, what: str) -> None:
        """Raises HpuError where something waits to be launched."""
        if self._pending:
            raise HpuError(f"{what}, and {len(self._pending)} operations wait for a mark step: {self._pending[:3]}")


@torch.inference_mode()
def arrive(sent: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Let numbers be on the host."""
    for target, numbers in sent:
        target.copy_(numbers)


def poison(tensor: torch.Tensor) -> None:
    """Fill with what nobody can mistake for results."""
    if tensor.dtype.is_floating_point:
        tensor.fill_(float("nan"))
    elif tensor.dtype is torch.bool:
        tensor.logical_not_()
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).min)


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0") == "1"


MACHINE = Machine(
    int(os.environ.get(MEMORY_VARIABLE, f"{8 << 30}")),
    is_lazy=_is_set(LAZY_VARIABLE),
    has_int64=_is_set(INT64_VARIABLE),
)
"""The card of this process, in the mode that the environment asks for."""
