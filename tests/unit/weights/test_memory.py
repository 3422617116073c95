"""How much memory a pass over a checkpoint takes beside the weights that stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

_PASS = """
import sys
import torch
from pathlib import Path
from tgi_core.weights.checkpoint import Checkpoint

def resident_bytes(key):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024

torch.zeros(8).bfloat16()
checkpoint = Checkpoint.open(Path(sys.argv[1]))
Path("/proc/self/clear_refs").write_text("5")
before_bytes = resident_bytes("VmRSS:")
kept = [checkpoint.tensor(name).bfloat16() for name in sorted(checkpoint.names)]
print(resident_bytes("VmHWM:") - before_bytes - sum(tensor.nbytes for tensor in kept))
"""


def test_no_more_than_the_largest_file_and_a_tenth(tmp_path: Path) -> None:
    file_bytes = 0
    for number in range(4):
        tensors = {f"{number}.{index}": torch.ones(1 << 20) for index in range(10)}
        save_file(tensors, tmp_path / f"{number}.safetensors")
        file_bytes = sum(tensor.nbytes for tensor in tensors.values())
    command = [sys.executable, "-c", _PASS, str(tmp_path)]
    extra_bytes = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert extra_bytes < 1.1 * file_bytes
