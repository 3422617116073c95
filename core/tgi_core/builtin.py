"""The core's own plugin: what ships with tgi-serve registers through the same hooks as everybody else's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tgi_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from tgi_core.models.spec import Architecture


@hookimpl
def tgi_architectures() -> Iterable[Architecture]:
    """The decoder-only families described in ``tgi_core.models``."""
    from tgi_core.models import ARCHITECTURES

    return ARCHITECTURES
