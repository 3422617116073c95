"""Settings that must stand before anything is imported."""

from __future__ import annotations

import os
from pathlib import Path

# Triton decides when it is imported whether it interprets kernels, and torch's own modules may import it first. With a
# GPU the interpreter's tests run in a process of their own: pytest tests/backends/triton.
if not Path("/dev/nvidia0").exists():
    os.environ["TRITON_INTERPRET"] = "1"
