"""Makes a model folder one that can be served: Hugging Face's layout, safetensors, a fast tokenizer."""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tgi_core.weights.consolidated import CONSOLIDATED, PARAMS_NAME, config_of, read_params
from tgi_core.weights.linked import linked_folder
from tgi_core.weights.pickled import SHARD_NAME, SUFFIXES, find_pickled
from tgi_core.weights.progress import Progress
from tgi_core.weights.tokenizers.files import TokenizerSource, find_source

logger = logging.getLogger(__name__)

_WEIGHTS = (".safetensors", *SUFFIXES)


def servable_folder(folder: Path, cache_dir: Path, progress: Progress, *, weights: bool = True) -> Path:
    """``folder`` itself, or one in ``cache_dir`` that has what it lacks.

    Pickled weights are converted beside the originals, or into the cache where the folder cannot be written. Mistral's
    own checkpoints get a ``config.json``. Without ``weights`` pickles are left as they are. A tokenizer in another form
    than ``tokenizer.json`` is converted likewise, unless it has no fast form.

    Raises:
        StartupError: something is damaged or cannot be written.
    """
    if not (folder / "config.json").exists() and (folder / PARAMS_NAME).exists():
        folder = _with_config(folder, cache_dir)
    folder = _with_tokenizer(folder, cache_dir, progress)
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


class _NoFastFormError(Exception):
    """Ends the making of a folder that would have no ``tokenizer.json`` either."""


def _with_tokenizer(folder: Path, cache_dir: Path, progress: Progress) -> Path:
    if (folder / "tokenizer.json").exists() or (source := find_source(folder)) is None:
        return folder

    def fill(target: Path) -> None:
        _convert_tokenizer(source, folder, target, progress)

    try:
        if os.access(folder, os.W_OK):
            fill(folder)
            return folder
        links = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
        return linked_folder(cache_dir, folder.name, links, [], fill)
    except _NoFastFormError as reason:
        logger.info("%s stays as it is, it has no fast form: %s.", source.file, reason)
        return folder


def _convert_tokenizer(source: TokenizerSource, folder: Path, target: Path, progress: Progress) -> None:
    from tgi_core.weights.apart import convert_tokenizer_apart

    unfinished = target / f".converting-{uuid.uuid4().hex}"
    unfinished.mkdir()
    try:
        reason = convert_tokenizer_apart(source, folder, unfinished, progress)
        if reason:
            raise _NoFastFormError(reason)
        os.replace(unfinished / "tokenizer.json", target / "tokenizer.json")
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    logger.info("%s was converted to %s.", source.file, target / "tokenizer.json")


def _others(folder: Path) -> Sequence[Path]:
    """What lies in ``folder`` beside weights and their indexes."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.suffix not in _WEIGHTS and not path.name.endswith(".index.json") and not path.name.startswith(".")
    ]
