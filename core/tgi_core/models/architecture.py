"""From a configuration to the architecture that knows it."""

from __future__ import annotations

from tgi_core.models.hf_config import HFConfig
from tgi_core.models.spec import Architecture
from tgi_core.plugins import Plugins


def find_architecture(config: HFConfig) -> Architecture:
    """The architecture of the configuration's ``model_type``, of the core or of a plugin.

    Raises:
        UnsupportedModelError: no plugin offers one.
    """
    model_type = config.get("model_type", str)
    architectures = Plugins.discover().architectures()
    if model_type not in architectures:
        raise config.unsupported("model_type", "there is no architecture of this type")
    return architectures[model_type]
