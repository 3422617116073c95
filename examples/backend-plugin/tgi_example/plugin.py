"""The plugin's entry point; imports neither torch nor the SDK of the device."""

from __future__ import annotations

from collections.abc import Iterable

from tgi_core.contract import Backend
from tgi_core.hookspecs import hookimpl
from tgi_example.backend import ExampleBackend
from tgi_example.static import StaticBackend


@hookimpl
def tgi_backends() -> Iterable[Backend]:
    """What this distribution offers."""
    return [ExampleBackend(), StaticBackend()]
