"""The hooks a plugin may implement. They run at start-up only, never during a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from tgi_core.contract import Backend
    from tgi_core.models.spec import Architecture

PROJECT_NAME = "tgi_serve"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@hookspec
def tgi_backends() -> Iterable[Backend]:  # type: ignore[empty-body]
    """Backends this plugin offers."""


@hookspec
def tgi_architectures() -> Iterable[Architecture]:  # type: ignore[empty-body]
    """Model architectures this plugin offers, each by its ``model_type``."""
