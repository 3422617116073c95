"""Variants of a backend for one test: its operations watched or made to fail, its capabilities reduced."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from torch import Tensor

from tgi_core.contract import AttentionChoice, Backend, CompiledStep, Device, DeviceState, Kernels

T = TypeVar("T", Backend, Device)

Around = Callable[[str], AbstractContextManager[object]]
"""What an operation is to run inside, by its name."""

COMPILED_STEP = "compiled step"
"""What a step of a device that compiles is called, whose operations may not pass here again."""

OPERATION_NAMES: frozenset[str] = frozenset(Kernels.__abstractmethods__)
"""Every method of the contract that computes."""


def wrap_kernels(kernels: Kernels, around: Around) -> Kernels:
    """A twin of ``kernels`` whose operations run inside ``around``; the original stays as it is."""
    original = type(kernels)

    def wrapped(name: str) -> Callable[..., Any]:
        def call(self: Kernels, *arguments: Any, **named: Any) -> Any:
            with around(name):
                return getattr(original, name)(self, *arguments, **named)

        return call

    twin = copy.copy(kernels)
    twin.__class__ = type(original.__name__, (original,), {name: wrapped(name) for name in OPERATION_NAMES})
    return twin


def wrap_backend(backend: Backend, around: Around) -> Backend:
    """A twin of ``backend`` whose shards run every operation, and every step that was compiled, inside ``around``."""

    def open_device(_self: Backend, local_index: int) -> Device:
        return _wrap_device(backend.open_device(local_index), around)

    def kernels(_self: Backend, device: Device) -> Kernels:
        return wrap_kernels(backend.kernels(device), around)

    def kernels_for(_self: Backend, device: Device, attention: AttentionChoice | None) -> Kernels:
        return wrap_kernels(backend.kernels_for(device, attention), around)

    return _twin(backend, open_device=open_device, kernels=kernels, kernels_for=kernels_for)


def _wrap_device(device: Device, around: Around) -> Device:
    def compile_step(_self: Device, work: CompiledStep, state: DeviceState, inputs: tuple[Tensor, ...]) -> CompiledStep:
        step = device.compile(work, state, inputs)

        def call(state: DeviceState, inputs: tuple[Tensor, ...]) -> tuple[DeviceState, tuple[Tensor, ...]]:
            with around(COMPILED_STEP):
                return step(state, inputs)

        return call

    return _twin(device, compile=compile_step)


def _twin(original_object: T, **methods: Callable[..., Any]) -> T:
    original = type(original_object)
    twin = copy.copy(original_object)
    twin.__class__ = type(original.__name__, (original,), methods)
    return twin
