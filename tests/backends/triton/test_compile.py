"""Every kernel compiles for every architecture and fits it; no device is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SHARED_BYTES = {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448}
MATRIX_INSTRUCTION = {80: "mma.sync", 89: "mma.sync", 90: "wgmma", 100: "tcgen05.mma"}


@pytest.mark.slow
@pytest.mark.parametrize("capability", list(SHARED_BYTES))
def test_kernels_fit(capability: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.backends.triton.compile_kernels", str(capability)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    resources = json.loads(run.stdout)
    too_large = {name: used["shared"] for name, used in resources.items() if used["shared"] > SHARED_BYTES[capability]}
    assert not too_large
    prefills = {name: used["matrix"] for name, used in resources.items() if name.startswith("prefill-128-0-bf16")}
    assert prefills
    for name, instructions in prefills.items():
        assert MATRIX_INSTRUCTION[capability] in instructions, name
