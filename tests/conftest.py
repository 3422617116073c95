"""Settings that must stand before anything is imported, and the server that many tests share."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.server import ServerProcess

# Triton decides when it is imported whether it interprets kernels, and torch's own modules may import it first. With a
# GPU the interpreter's tests run in a process of their own: pytest tests/backends/triton.
if not Path("/dev/nvidia0").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# What the tests import stays until the end; to look at all of it in every collection takes longer than most tests do.
gc.disable()
# Libraries tell what is still there when the process ends. Not when pytest ends, which tests run inside of themselves.
atexit.register(gc.unfreeze)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server with the demo model for all tests that leave it running."""
    # Some environments have none of what a server and its clients need.
    from tests.support.server import ServerProcess

    log = tmp_path_factory.mktemp("server") / "log"
    flags = ("--model-id", "demo", "--served-model-name", "smol", "--max-concurrent-requests", "128")
    with ServerProcess(log, *flags) as running:
        yield running
