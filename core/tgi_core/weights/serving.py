"""Makes a model folder one that can be served: in Hugging Face's layout, with its weights in safetensors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tgi_core.weights.consolidated import CONSOLIDATED, PARAMS_NAME, config_of, read_params
from tgi_core.weights.linked import linked_folder
from tgi_core.weights.pickled import SHARD_NAME, SUFFIXES, find_pickled
from tgi_core.weights.progress import Progress

_WEIGHTS = (".safetensors", *SUFFIXES)


def servable_folder(folder: Path, cache_dir: Path, progress: Progress, *, weights: bool = True) -> Path:
    """``folder`` itself, or one in ``cache_dir`` that has what it lacks.

    Pickled weights are converted beside the originals, or into the cache where the folder cannot be written. Mistral's
    own checkpoints get a ``config.json``. Without ``weights`` pickles are left as they are.

    Raises:
        StartupError: something is damaged or cannot be written.
    """
    if not (folder / "config.json").exists() and (folder / PARAMS_NAME).exists():
        folder = _with_config(folder, cache_dir)
    if not weights or has_safetensors(folder):
        return folder
    pickled = find_pickled(folder)
    if not pickled:
        return folder
    from tgi_core.weights.apart import convert_apart

    if os.access(folder, os.W_OK):
        convert_apart(pickled, folder, progress)
        return folder
    return linked_folder(
        cache_dir, folder.name, _others(folder), pickled, lambda target: convert_apart(pickled, target, progress)
    )


def has_safetensors(folder: Path) -> bool:
    """Whether ``folder`` has weights in safetensors; the first shards of a conversion that ended early do not count."""
    names = [path.name for path in folder.glob("*.safetensors") if not path.name.startswith("adapter_")]
    whole = "model.safetensors" in names or (folder / "model.safetensors.index.json").is_file()
    return whole or any(not SHARD_NAME.fullmatch(name) for name in names) or (bool(names) and not find_pickled(folder))


def with_weights_of(description: Path, weights_dir: Path, cache_dir: Path) -> Path:
    """A folder in ``cache_dir`` with everything of ``description`` but weights, and the weights of ``weights_dir``."""
    files = [path for path in sorted(weights_dir.iterdir()) if path.is_file()]
    taken = {path.name for path in files}
    rest = [path for path in _others(description) if path.name not in taken]
    return linked_folder(cache_dir, weights_dir.name, [*rest, *files], [], _nothing)


def _nothing(target: Path) -> None:
    """All files are links."""


def _with_config(folder: Path, cache_dir: Path) -> Path:
    params = folder / PARAMS_NAME

    def fill(target: Path) -> None:
        content = msgspec.json.encode(config_of(read_params(folder)))
        (target / "config.json").write_bytes(msgspec.json.format(content, indent=2) + b"\n")

    weights = sorted(folder.glob(f"{CONSOLIDATED}*.safetensors"))
    return linked_folder(cache_dir, folder.name, [*_others(folder), *weights], [params], fill)


def _others(folder: Path) -> Sequence[Path]:
    """What lies in ``folder`` beside weights and their indexes."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.suffix not in _WEIGHTS and not path.name.endswith(".index.json") and not path.name.startswith(".")
    ]
