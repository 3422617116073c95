"""Which way a model runs: through an architecture of ours, else as transformers' model."""

from __future__ import annotations

from pathlib import Path

from tgi_core.errors import UnsupportedModelError
from tgi_core.models.hf_config import HFConfig
from tgi_core.models.model import Model
from tgi_core.models.own import open_own
from tgi_core.models.quantization import find_quantization


def choose_model(model_dir: Path, *, trust_remote_code: bool = False) -> Model:
    """The model in ``model_dir``, described and not loaded. An architecture of ours is chosen without transformers.

    Args:
        model_dir: the model's folder.
        trust_remote_code: code in the folder may run, where neither we nor transformers know the model.

    Raises:
        StartupError: no way can run it, for which the message has the reason of each; or its weights are quantized in
            a way that none can read.
    """
    config = HFConfig.read(model_dir)
    find_quantization(model_dir, config)
    try:
        return open_own(model_dir, config)
    except UnsupportedModelError as ours:
        from tgi_core.models.fallback.choose import choose_fallback

        return choose_fallback(model_dir, reason=ours.cause, trust_remote_code=trust_remote_code)
