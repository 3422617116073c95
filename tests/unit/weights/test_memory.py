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
from tgi_core.weights.dequantized import DequantizedCheckpoint, Fp8, Mxfp4

def resident_bytes(key):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024

def take(checkpoint, name):
    if len(checkpoint.shape(name)) < 3:
        return checkpoint.tensor(name).bfloat16()
    whole = torch.empty(checkpoint.shape(name), dtype=torch.bfloat16)
    for part, slice in zip(whole, checkpoint.slices(name)):
        part.copy_(slice)
    return whole

def extra_bytes(folder, quantization):
    checkpoint = Checkpoint.open(folder)
    if quantization is not None:
        checkpoint = DequantizedCheckpoint(checkpoint, quantization, torch.bfloat16)
    Path("/proc/self/clear_refs").write_text("5")
    before_bytes = resident_bytes("VmRSS:")
    kept = [take(checkpoint, name) for name in sorted(checkpoint.names)]
    return resident_bytes("VmHWM:") - before_bytes - sum(tensor.nbytes for tensor in kept)

kinds = {"float32": None, "fp8": Fp8((128, 128)), "mxfp4": Mxfp4()}
for kind in (*kinds, *kinds):
    # The first time some memory is that of code.
    print(kind, extra_bytes(Path(sys.argv[1]) / kind, kinds[kind]))
"""


def _tensors(kind: str, name: str) -> dict[str, torch.Tensor]:
    match kind:
        case "fp8":
            weight = torch.ones(2048, 2048).to(torch.float8_e4m3fn)
            return {name: weight, f"{name}_scale_inv": torch.ones(16, 16)}
        case "mxfp4":
            blocks = torch.zeros(16, 512, 32, 16, dtype=torch.uint8)
            return {f"{name}_blocks": blocks, f"{name}_scales": blocks[..., 0].contiguous()}
    return {name: torch.ones(1 << 20)}


def test_no_more_than_the_largest_file_and_a_tenth(tmp_path: Path) -> None:
    file_bytes = {}
    for kind in ("float32", "fp8", "mxfp4"):
        (tmp_path / kind).mkdir()
        for number in range(3):
            tensors = {}
            for index in range(10):
                tensors |= _tensors(kind, f"{number}.{index}")
            save_file(tensors, tmp_path / kind / f"{number}.safetensors")
            file_bytes[kind] = sum(tensor.nbytes for tensor in tensors.values())
    command = [sys.executable, "-c", _PASS, str(tmp_path)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    extra_bytes = {kind: int(found) for kind, found in map(str.split, lines)}
    for kind, limit in file_bytes.items():
        assert extra_bytes[kind] < 1.1 * limit, kind
