"""Resources of the kernels, compiled in a process without an interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any


@cache
def compiled(architecture: str, dtype: str, launches: str = "") -> dict[str, Any]:
    """What ``compile_kernels`` prints, once for all tests; of the launches that the expression names."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.backends.triton.compile_kernels", architecture, dtype, launches]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    resources: dict[str, Any] = json.loads(run.stdout)
    return resources
