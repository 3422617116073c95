"""Bring the model onto this machine, and show how that goes."""

from __future__ import annotations

import os
from pathlib import Path

from tgi_api.cli.display import Display


def find_model(
    model_id: str,
    revision: str | None,
    hub_cache_dir: Path | None,
    display: Display,
    *,
    weights: bool = True,
    weights_dir: Path | None = None,
) -> Path:
    """The local folder of the model, downloaded or converted where needed; without ``weights`` it may lack them.

    ``weights_dir`` is a folder whose weights replace the model's.

    Raises:
        StartupError: it cannot be had; the message says why and what to do.
    """
    if not display.draws:
        # Read when the hub's library is imported; its bars would fill a log with fragments.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from tgi_core.weights.resolve import resolve_model

    return resolve_model(
        model_id,
        revision=revision,
        hub_cache_dir=hub_cache_dir,
        progress=display.progress,
        weights=weights,
        weights_dir=weights_dir,
    )
