"""Registers the null backend."""

from __future__ import annotations

from collections.abc import Iterable

from tgi_core.contract import Backend
from tgi_core.hookspecs import hookimpl
from tgi_core.testing.null_backend import NullBackend


@hookimpl
def tgi_backends() -> Iterable[Backend]:
    """The null backend without costs."""
    return [NullBackend()]
