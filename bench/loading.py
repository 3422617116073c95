"""Loading a sharded checkpoint: ``python -m bench.loading``.

Makes a checkpoint of random bfloat16 weights, then measures in turns, each in a process of its own:

- safetensors: ``load_file`` of each shard, then one read of every byte;
- ours: open the checkpoint, check and take every tensor as a model's loader does, then one read of every byte;
- merged: the same up to the weights a server computes with (reference kernels), of which those that are merged from
  parts are a view of the file where the parts lie next to each other, and else a copy in fresh memory;
- fresh: as many bytes of fresh memory as "merged" copies, filled once: what the system asks for it.

With the files in the page cache or without (``--state``), onto the host or a GPU (``--device``). Ends with status 1
when the bytes a second of ours are below ``TARGET`` of safetensors'; "merged" does more and has no target.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import torch
from safetensors.torch import load_file, save_file

from tgi_core.models.families import ARCHITECTURES
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
_LLAMA = next(architecture for architecture in ARCHITECTURES if architecture.model_type == "llama")

_COPIED = tuple(f"{name}_proj.weight" for name in ("q", "k", "v"))
"""What the loader copies: keys do not lie between queries and values in a file. The rest is used where it lies."""


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


def load_safetensors(folder: Path, device: torch.device) -> None:
    """Map every shard and read every byte once."""
    for path in sorted(folder.glob("*.safetensors")):
        for tensor in load_file(path, device=str(device)).values():
            tensor.view(torch.int16).max()


def load_ours(folder: Path, device: torch.device) -> None:
    """Take every tensor from the source that loaders read from, and read every byte once."""
    checkpoint = Checkpoint.open(folder)
    source = _source(checkpoint, device)
    for name in sorted(checkpoint.names, key=lambda name: (checkpoint.file_name(name), name)):
        source.take(name, checkpoint.shape(name)).view(torch.int16).max()
    source.finish()


def load_merged(folder: Path, device: torch.device) -> None:
    """As a server does, up to packed weights of the reference kernels; then read every byte of them once."""
    checkpoint = Checkpoint.open(folder)
    spec = _LLAMA.build(HFConfig.read(folder))
    weights = load_decoder_weights(spec, _LLAMA.names, _source(checkpoint, device), ReferenceKernels())
    for tensor in _tensors(weights):
        tensor.view(torch.int16).max()


def fill_fresh(folder: Path, device: torch.device) -> None:
    """Ask for the memory of the copies that "merged" makes, and write it once."""
    checkpoint = Checkpoint.open(folder)
    copied_bytes = sum(checkpoint.size_bytes(name) for name in checkpoint.names if name.endswith(_COPIED))
    torch.empty(copied_bytes, dtype=torch.uint8, device=device).zero_()


def _tensors(weights: object) -> Iterator[torch.Tensor]:
    """All tensors of nested tuples."""
    if isinstance(weights, torch.Tensor):
        yield weights
    elif isinstance(weights, tuple):
        for part in weights:
            yield from _tensors(part)


def _source(checkpoint: Checkpoint, device: torch.device) -> CheckpointSource:
    return CheckpointSource(checkpoint, _LLAMA, torch.bfloat16, device, _show_nothing)


def _show_nothing(loaded_bytes: int, total_bytes: int) -> None:
    """The progress that nobody watches."""


Side = Callable[[Path, torch.device], None]

SIDES: Mapping[str, Side] = {
    "safetensors": load_safetensors,
    "ours": load_ours,
    "merged": load_merged,
    "fresh": fill_fresh,
}


def forget(folder: Path) -> None:
    """Take the shards out of the page cache."""
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(work: Side, folder: Path, device: torch.device) -> tuple[float, float]:
    """Seconds that ``work`` takes, and those that its threads and the system compute for it."""
    # Opening the device is not a part of loading.
    torch.zeros(1, device=device).item()
    started, computed = time.perf_counter(), time.process_time()
    work(folder, device)
    torch.zeros(1, device=device).item()
    return time.perf_counter() - started, time.process_time() - computed


def main() -> int:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=_CONFIG["num_hidden_layers"], help="14 make 2 GB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--state", choices=("warm", "cold"), default="warm", help="of the page cache")
    parser.add_argument("--device", default="cpu", help="where weights go: cpu, cuda, ...")
    parser.add_argument("--json", type=Path, help="keep the figures and every sample")
    parser.add_argument("--one", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="where to keep the checkpoint; by default it is made and removed")
    options = parser.parse_args()
    if options.one is not None:
        print(*measure(SIDES[options.one], options.folder, torch.device(options.device)))
        return 0
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        total_bytes = make_checkpoint(folder, options.layers)
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        cpu_seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        for number in range(options.rounds + 1):
            for side in SIDES:
                if options.state == "cold":
                    forget(folder)
                # A process each: pages that an earlier round has mapped would be free.
                command = [sys.executable, "-m", "bench.loading", "--one", side, "--folder", str(folder)]
                command += ["--device", options.device]
                took = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
                if number:
                    seconds[side].append(float(took[0]))
                    cpu_seconds[side].append(float(took[1]))
    report = _report(seconds, cpu_seconds, total_bytes, options.state)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return 0 if report["ratios"]["ours"] >= TARGET else 1


Samples = Mapping[str, list[float]]
"""Of each side, one a round."""


def _report(seconds: Samples, cpu_seconds: Samples, total_bytes: int, state: str) -> dict[str, Any]:
    """Print the comparison; return it with every sample."""
    medians = {side: statistics.median(taken) for side, taken in seconds.items()}
    ratios, cpu_ratios = _ratios(seconds), _ratios(cpu_seconds)
    for side, taken in seconds.items():
        print(f"{side:<12} {medians[side]:.2f} s ({min(taken):.2f} to {max(taken):.2f})", end="")
        if side in ratios:
            print(f" {total_bytes / medians[side] / 1e9:6.2f} GB/s  ratio {ratios[side]:.2f}", end="")
            print(f", of processor time {cpu_ratios[side]:.2f}", end="")
        print()
    print(f"{total_bytes / 1e9:.2f} GB, page cache {state}, target of ours {TARGET}")
    return {
        "command": ["python", "-m", "bench.loading", *sys.argv[1:]],
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "versions": {"torch": str(torch.__version__), "safetensors": safetensors.__version__},
        "page_cache": state,
        "total_bytes": total_bytes,
        "seconds": dict(seconds),
        "cpu_seconds": dict(cpu_seconds),
        "ratios": ratios,
        "cpu_ratios": cpu_ratios,
    }


def _ratios(samples: Samples) -> dict[str, float]:
    """How often a side fits into the median of safetensors'."""
    base = statistics.median(samples["safetensors"])
    return {side: base / statistics.median(taken) for side, taken in samples.items() if side != "fresh"}


if __name__ == "__main__":
    sys.exit(main())
