"""The plugin's entry point; imports neither torch nor jax."""

from __future__ import annotations

from collections.abc import Iterable

from tgi_core.contract import Backend
from tgi_core.hookspecs import hookimpl
from tgi_tpu.backend import TpuBackend


@hookimpl
def tgi_backends() -> Iterable[Backend]:
    """The TPU backend."""
    return [TpuBackend()]
