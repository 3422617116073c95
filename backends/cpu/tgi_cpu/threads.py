"""How many threads compute."""

from __future__ import annotations

import os


def default_threads() -> int:
    """The processors this process may use, less one for the HTTP loop and tokenization; at least 1."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, usable - 1)
