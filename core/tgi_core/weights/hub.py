"""Downloads a model from the Hugging Face hub into the hub's own cache."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tgi_core.errors import ExitCode, StartupError
from tgi_core.weights.consolidated import CONSOLIDATED

# Code is fetched like the rest, so that an offline server may be told to trust it; fetching runs none of it.
_DESCRIPTION = ["*.json", "*.jinja", "tokenizer*", "*.model", "*.tiktoken", "merges.txt", "vocab.txt", "*.py"]
_PICKLED = ["*.bin", "*.bin.index.json", "*.pt"]
# Exports for other runtimes, the state of a training, and the vendor's weights in a layout that is not read.
_UNWANTED = ["onnx/*", "openvino/*", "original/*", "*.pth", "training_args*", "optimizer*", "scheduler*", "rng_state*"]


def download_model(
    repo_id: str, revision: str | None, hub_cache_dir: Path | None = None, *, weights: bool = True
) -> Path:
    """The folder of ``repo_id`` at ``revision`` (default: the main branch) in the cache, with what serving needs.

    Without ``weights`` the files that hold them are left where they are. Of weights that a repository has in several
    forms one is fetched: safetensors in Hugging Face's layout, else in Mistral's, else pickled ones.
    ``HF_HUB_OFFLINE``, ``HF_TOKEN``, ``HF_HOME`` and the hub's other variables hold, and TGI's old ``HF_API_TOKEN``
    where there is no other token; the hub's progress bars are shown.

    Raises:
        StartupError: there is no such repository or revision, access is refused, or it cannot be reached.
    """
    from huggingface_hub import get_token, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    token = os.environ.get("HF_API_TOKEN") if get_token() is None else None
    try:
        wanted, unwanted = _weight_patterns(_listed_files(repo_id, revision, token)) if weights else ([], [])
        return Path(
            snapshot_download(
                repo_id,
                revision=revision,
                cache_dir=hub_cache_dir,
                token=token,
                allow_patterns=_DESCRIPTION + wanted,
                ignore_patterns=_UNWANTED + unwanted,
            )
        )
    except HFValidationError as error:
        raise _refuse(
            f"`{repo_id}` is neither a folder nor the id of a hub repository.",
            "Give a folder, a *.gguf file, `demo`, or an id such as owner/name.",
        ) from error
    except GatedRepoError as error:
        raise _refuse(
            f"Access to the hub repository `{repo_id}` is restricted.",
            f"Accept its terms at https://huggingface.co/{repo_id} and set HF_TOKEN to a token of that account.",
        ) from error
    except RepositoryNotFoundError as error:
        raise _refuse(
            f"There is no folder and no hub repository `{repo_id}`, or it is private.",
            "Check the spelling; for a private repository set HF_TOKEN.",
        ) from error
    except RevisionNotFoundError as error:
        raise _refuse(f"The hub repository `{repo_id}` has no revision `{revision}`.", "Check --revision.") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise _refuse(
            f"There is no folder `{repo_id}`, and the hub repository of that name is not in the cache while the hub "
            "cannot be reached.",
            "Check the network and HF_HUB_OFFLINE, or give a local folder.",
        ) from error
    except Exception as error:  # which errors its HTTP library raises depends on the hub client's version
        raise _refuse(
            f"Downloading `{repo_id}` failed: {error}.", "Check the network and the free disk space, then try again."
        ) from error


def _listed_files(repo_id: str, revision: str | None, token: str | None) -> list[str]:
    """The names of the repository's files; none while the hub cannot be reached, when the cache decides."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return list(HfApi().list_repo_files(repo_id, revision=revision, token=token))
    except (HFValidationError, RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except Exception:  # which errors its HTTP library raises depends on the hub client's version
        return []


def _weight_patterns(files: Iterable[str]) -> tuple[list[str], list[str]]:
    """Patterns of what to fetch of a repository with these files, and of what to leave."""
    names = [name for name in files if "/" not in name]
    safetensors = [name for name in names if name.endswith(".safetensors")]
    if safetensors and all(name.startswith(CONSOLIDATED) for name in safetensors):
        return ["*.safetensors"], []
    pickled = not safetensors and any(name.endswith((".bin", ".pt")) for name in names)
    return (_PICKLED, []) if pickled else (["*.safetensors"], [f"{CONSOLIDATED}*"])


def _refuse(cause: str, fix: str) -> StartupError:
    return StartupError(cause, fix, ExitCode.MODEL)
