"""The backend passes the conformance kit of tgi-serve."""

from __future__ import annotations

import subprocess
import sys


def test_the_backend_conforms() -> None:
    kit = [sys.executable, "-m", "pytest", "--pyargs", "tgi_core.testing", "--tgi-backend", "example", "--tgi-quick"]
    subprocess.run(kit, check=True)
