"""The plugin's entry point; imports neither torch nor anything of the device."""

from __future__ import annotations

from collections.abc import Iterable

from tgi_core.contract import Backend
from tgi_core.hookspecs import hookimpl
from tgi_cpu.backend import CpuBackend


@hookimpl
def tgi_backends() -> Iterable[Backend]:
    """The CPU backend."""
    return [CpuBackend()]
