"""How the fallback says no."""

from __future__ import annotations

from tgi_core.errors import ExitCode, StartupError


def refuse(reason: str) -> StartupError:
    """The error for a model that transformers has and that cannot run over our attention, because of ``reason``."""
    return StartupError(
        f"it cannot run, because {reason}.",
        "Serve another model, or write an architecture plugin that knows this one.",
        ExitCode.MODEL,
    )
