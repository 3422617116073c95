"""Loading a sharded checkpoint: ``python -m bench.loading``.

Makes a checkpoint of random bfloat16 weights, then measures in turns, each in a process of its own:

- safetensors: ``load_file`` of each shard, then one read of every byte;
- ours: open the checkpoint, check and take every tensor as a model's loader does, then one read of every byte;
- merged: the same up to the weights a server computes with, where most tensors are copied into merged ones.

Once with the files in the page cache and once without (``--state``). Ends with status 1 when the bytes a second of ours
are below ``TARGET`` of safetensors'; "merged" does more than the others and has no target.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tgi_core.models.architecture import find_architecture
from tgi_core.models.hf_config import HFConfig
from tgi_core.models.loader import load_decoder_weights
from tgi_core.models.sources import CheckpointSource
from tgi_core.reference import ReferenceKernels
from tgi_core.weights.checkpoint import Checkpoint

TARGET = 0.9

_CONFIG = {
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 14,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_LAYERS_PER_SHARD = 4

_MERGED = tuple(f"{name}_proj.weight" for name in ("q", "k", "v", "gate", "up"))
"""What the loader copies into merged weights; the rest is used where it lies."""


def make_checkpoint(folder: Path, num_layers: int) -> int:
    """Write the model in shards; returns their bytes."""
    hidden, inner, kv = 2048, 8192, 1024
    shapes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    (folder / "config.json").write_text(json.dumps(_CONFIG | {"num_hidden_layers": num_layers}))
    ends = {
        "model.embed_tokens.weight": (32_000, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (32_000, hidden),
    }
    weight_map, total_bytes = {}, 0
    for number, first in enumerate(range(0, num_layers, _LAYERS_PER_SHARD)):
        layers = range(first, min(first + _LAYERS_PER_SHARD, num_layers))
        wanted = {f"model.layers.{layer}.{name}.weight": shape for layer in layers for name, shape in shapes.items()}
        wanted |= ends if first == 0 else {}
        tensors = {name: torch.randn(shape).bfloat16() for name, shape in wanted.items()}
        file_name = f"model-{number}.safetensors"
        save_file(tensors, folder / file_name)
        weight_map |= dict.fromkeys(tensors, file_name)
        total_bytes += sum(tensor.nbytes for tensor in tensors.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return total_bytes


def load_safetensors(folder: Path) -> None:
    """Map every shard and read every byte once."""
    for path in sorted(folder.glob("*.safetensors")):
        for tensor in load_file(path).values():
            tensor.view(torch.int16).max()


def load_ours(folder: Path) -> None:
    """Take every tensor from the source that loaders read from, and read every byte once."""
    checkpoint = Checkpoint.open(folder)
    source = _source(checkpoint, folder)
    for name in sorted(checkpoint.names, key=lambda name: (checkpoint.file_name(name), name)):
        source.take(name, checkpoint.shape(name)).view(torch.int16).max()
    source.finish()


def load_merged(folder: Path) -> None:
    """As a server does, up to packed weights of the reference kernels; then read what stayed in the mapped files."""
    checkpoint = Checkpoint.open(folder)
    architecture = find_architecture(HFConfig.read(folder))
    spec = architecture.build(HFConfig.read(folder))
    load_decoder_weights(spec, architecture.names, _source(checkpoint, folder), ReferenceKernels())
    for name in sorted(checkpoint.names):
        if not name.endswith(_MERGED):
            checkpoint.tensor(name).view(torch.int16).max()


def _source(checkpoint: Checkpoint, folder: Path) -> CheckpointSource:
    architecture = find_architecture(HFConfig.read(folder))
    return CheckpointSource(checkpoint, architecture, torch.bfloat16, torch.device("cpu"), _show_nothing)


def _show_nothing(loaded_bytes: int, total_bytes: int) -> None:
    """The progress that nobody watches."""


SIDES: Mapping[str, Callable[[Path], None]] = {
    "safetensors": load_safetensors,
    "ours": load_ours,
    "merged": load_merged,
}


def forget(folder: Path) -> None:
    """Take the shards out of the page cache."""
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(work: Callable[[Path], None], folder: Path) -> float:
    """Seconds that ``work`` takes."""
    started = time.perf_counter()
    work(folder)
    return time.perf_counter() - started


def main() -> int:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=_CONFIG["num_hidden_layers"], help="14 make 2 GB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--state", choices=("warm", "cold"), default="warm", help="of the page cache")
    parser.add_argument("--one", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="where to keep the checkpoint; by default it is made and removed")
    options = parser.parse_args()
    if options.one is not None:
        print(measure(SIDES[options.one], options.folder))
        return 0
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        total_bytes = make_checkpoint(folder, options.layers)
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        for number in range(options.rounds + 1):
            for side, taken in seconds.items():
                if options.state == "cold":
                    forget(folder)
                # A process each: pages that an earlier round has mapped would be free.
                command = [sys.executable, "-m", "bench.loading", "--one", side, "--folder", str(folder)]
                took_s = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                if number:
                    taken.append(took_s)
    speeds = {side: total_bytes / statistics.median(taken) / 1e9 for side, taken in seconds.items()}
    for side, taken in seconds.items():
        ratio = speeds[side] / speeds["safetensors"]
        print(f"{side:<12} {speeds[side]:6.2f} GB/s  {min(taken):.2f} to {max(taken):.2f} s  ratio {ratio:.2f}")
    print(f"{total_bytes / 1e9:.2f} GB, page cache {options.state}, target of ours {TARGET}")
    return 0 if speeds["ours"] >= TARGET * speeds["safetensors"] else 1


if __name__ == "__main__":
    sys.exit(main())
