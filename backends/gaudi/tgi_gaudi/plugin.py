"""The plugin's entry point; imports neither torch nor the vendor's libraries."""

from __future__ import annotations

from collections.abc import Iterable

from tgi_core.contract import Backend
from tgi_core.hookspecs import hookimpl
from tgi_gaudi.backend import GaudiBackend


@hookimpl
def tgi_backends() -> Iterable[Backend]:
    """The Gaudi backend."""
    return [GaudiBackend()]
