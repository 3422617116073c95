"""Environment variables that an engine process must find when it starts, such as an allocator's settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def default_environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """Let a process that is started meanwhile see ``defaults`` where the user has set nothing."""
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
