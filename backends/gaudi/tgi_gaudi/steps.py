"""A step that the card runs as one piece: a recorded HPU graph, or what torch.compile makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tgi_core.contract import CompiledStep, DeviceState

Outputs = tuple[DeviceState, tuple[Tensor, ...]]

_MOST_TRACES = 1 << 16
"""Traces of the same code that torch.compile keeps: one for each shape and kind of work."""


class RecordedStep:
    """Work that is recorded as an HPU graph when it is first called, and replayed from then on.

    The graph holds the state's tensors by reference, so that they must be the same in every call.

    Args:
        work: what to record.
        state: the tensors that it writes in place.
        mark_step: launches what lazy mode has gathered.
        count: called whenever a graph is recorded.
    """

    def __init__(
        self, work: CompiledStep, state: DeviceState, mark_step: Callable[[], None], count: Callable[[], None]
    ) -> None:
        from habana_frameworks.torch.hpu import wrap_in_hpu_graph

        self._state = state
        self._mark_step = mark_step
        # Without a cache of tensors a graph keeps no memory between calls but that of its outputs.
        self._graph: Any = wrap_in_hpu_graph(_Work(work, state, count), disable_tensor_cache=True)

    def __call__(self, state: DeviceState, inputs: tuple[Tensor, ...]) -> Outputs:
        assert state is self._state, "a recorded step was given another state"
        self._mark_step()
        outputs: Sequence[Tensor] = self._graph(*inputs)
        # The next replay overwrites them, and whoever asked may not have read them by then.
        copies = tuple(output.clone() for output in outputs)
        self._mark_step()
        return state, copies


class TracedStep:
    """Work compiled by torch.compile when it is first called.

    Args:
        work: what to compile.
        state: the tensors that it writes in place.
    """

    def __init__(self, work: CompiledStep, state: DeviceState) -> None:
        # All steps share their code, and torch counts what it compiles of a piece of code.
        torch._dynamo.config.recompile_limit = _MOST_TRACES
        torch._dynamo.config.accumulated_recompile_limit = _MOST_TRACES
        self._state = state
        self._run = torch.compile(_Work(work, state), backend="hpu_backend", dynamic=False)

    def __call__(self, state: DeviceState, inputs: tuple[Tensor, ...]) -> Outputs:
        assert state is self._state, "a compiled step was given another state"
        return state, self._run(*inputs)


class _Work(torch.nn.Module):
    """A step whose only arguments are its inputs."""

    def __init__(self, work: CompiledStep, state: DeviceState, count: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._work = work
        self._state = state
        self._count = count

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self._count is not None:
            # A replay does not come here.
            self._count()
        return self._work(self._state, inputs)[1]
