"""Which way a model that no architecture of ours knows runs: over our attention, else with a cache of its own."""

from __future__ import annotations

from pathlib import Path

from tgi_core.errors import ExitCode, StartupError
from tgi_core.models.fallback.model import TransformersModel
from tgi_core.models.fallback.own_cache.model import OwnCacheModel
from tgi_core.models.fallback.pretrained import Pretrained
from tgi_core.models.model import Model


def choose_fallback(model_dir: Path, *, reason: str, trust_remote_code: bool) -> Model:
    """The model in ``model_dir``, as transformers describes it.

    Args:
        model_dir: the model's folder.
        reason: why no architecture of ours runs it.
        trust_remote_code: code in the folder may run.

    Raises:
        StartupError: no way can run it; the message has the reasons of all.
    """
    try:
        pretrained = Pretrained(model_dir, trust_remote_code=trust_remote_code)
    except StartupError as error:
        raise _refused(f"{reason} Transformers' own model: {error.cause}", error) from error
    try:
        return TransformersModel(pretrained, reason=reason)
    except StartupError as error:
        reason = f"{reason} Transformers' model over our attention: {error.cause}"
    try:
        return OwnCacheModel(pretrained, reason=reason)
    except StartupError as error:
        raise _refused(f"{reason} Transformers' model with its own cache: {error.cause}", error) from error


def _refused(cause: str, error: StartupError) -> StartupError:
    return StartupError(cause, error.fix, ExitCode.MODEL)
