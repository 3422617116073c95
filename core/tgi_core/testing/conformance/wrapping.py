"""Variants of a backend for one test: its operations watched or made to fail, its capabilities reduced."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tgi_core.contract import AttentionChoice, Backend, Device, Kernels

Around = Callable[[str], AbstractContextManager[object]]
"""What an operation is to run inside, by its name."""

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
    """A twin of ``backend`` whose shards run every operation inside ``around``."""

    def kernels(_self: Backend, device: Device) -> Kernels:
        return wrap_kernels(backend.kernels(device), around)

    def kernels_for(_self: Backend, device: Device, attention: AttentionChoice | None) -> Kernels:
        return wrap_kernels(backend.kernels_for(device, attention), around)

    return _twin(backend, kernels=kernels, kernels_for=kernels_for)


def _twin(backend: Backend, **methods: Callable[..., Any]) -> Backend:
    original = type(backend)
    twin = copy.copy(backend)
    twin.__class__ = type(original.__name__, (original,), methods)
    return twin
