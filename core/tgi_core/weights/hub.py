"""Downloads a model from the Hugging Face hub into the hub's own cache."""

from __future__ import annotations

import os
from pathlib import Path

from tgi_core.errors import ExitCode, StartupError

_DESCRIPTION = ["*.json", "*.jinja", "tokenizer*", "*.model"]
_WEIGHTS = ["*.safetensors"]
# Exports for other runtimes, and the same weights a second time under the vendor's names.
_UNWANTED = ["onnx/*", "openvino/*", "original/*", "consolidated*"]


def download_model(
    repo_id: str, revision: str | None, hub_cache_dir: Path | None = None, *, weights: bool = True
) -> Path:
    """The folder of ``repo_id`` at ``revision`` (default: the main branch) in the cache, with what serving needs.

    Without ``weights`` the files that hold them are left where they are.
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

    try:
        return Path(
            snapshot_download(
                repo_id,
                revision=revision,
                cache_dir=hub_cache_dir,
                token=os.environ.get("HF_API_TOKEN") if get_token() is None else None,
                allow_patterns=_DESCRIPTION + (_WEIGHTS if weights else []),
                ignore_patterns=_UNWANTED,
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


def _refuse(cause: str, fix: str) -> StartupError:
    return StartupError(cause, fix, ExitCode.MODEL)
