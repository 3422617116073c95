"""Which way a model runs: through an architecture of ours, else as transformers' model over our attention."""

from __future__ import annotations

from pathlib import Path

from tgi_core.errors import ExitCode, StartupError, UnsupportedModelError
from tgi_core.models.hf_config import HFConfig
from tgi_core.models.model import Model
from tgi_core.models.own import OwnModel


def choose_model(model_dir: Path) -> Model:
    """The model in ``model_dir``, described and not loaded. An architecture of ours is chosen without transformers.

    Raises:
        StartupError: neither way can run it; the message says why for both.
    """
    config = HFConfig.read(model_dir)
    try:
        return OwnModel(model_dir, config)
    except UnsupportedModelError as ours:
        from tgi_core.models.fallback.model import TransformersModel

        try:
            return TransformersModel(model_dir, reason=ours.cause)
        except StartupError as theirs:
            raise StartupError(
                f"{ours.cause} Transformers' model over our attention: {theirs.cause}", theirs.fix, ExitCode.MODEL
            ) from theirs
