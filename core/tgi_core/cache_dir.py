"""Where what can be made again is kept: converted models, exported ones."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache_dir() -> Path:
    """``$TGI_SERVE_CACHE``, else ``tgi-serve`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    own = os.environ.get("TGI_SERVE_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "tgi-serve"
