"""The plugin's entry point; imports neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Iterable

from tgi_core.contract import Backend
from tgi_core.hookspecs import hookimpl
from tgi_xpu.backend import XpuBackend


@hookimpl
def tgi_backends() -> Iterable[Backend]:
    """The XPU backend."""
    return [XpuBackend()]
