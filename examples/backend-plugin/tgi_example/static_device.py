"""The same device, which wants a program for each shape of a step."""

from __future__ import annotations

from torch import Tensor

from tgi_core.contract import CompiledStep, DeviceState
from tgi_example.device import ExampleDevice


class StaticDevice(ExampleDevice):
    """Counts its programs. Operations are run as they come: a real device hands ``work`` to its compiler."""

    def __init__(self) -> None:
        self._num_compiled = 0

    @property
    def num_compiled(self) -> int:
        return self._num_compiled

    def compile(self, work: CompiledStep, state: DeviceState, inputs: tuple[Tensor, ...]) -> CompiledStep:  # noqa: ARG002
        self._num_compiled += 1
        return work
