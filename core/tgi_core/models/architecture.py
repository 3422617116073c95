"""From a configuration to the architecture that knows it."""

from __future__ import annotations

from tgi_core.errors import ExitCode, UnsupportedModelError
from tgi_core.models.family import Architecture, ModuleArchitecture
from tgi_core.models.hf_config import HFConfig
from tgi_core.plugins import Plugins


def find_architecture(config: HFConfig) -> Architecture | ModuleArchitecture:
    """The architecture of the configuration's ``model_type``, of the core or of a plugin.

    Raises:
        UnsupportedModelError: no plugin offers one.
    """
    model_type = config.get("model_type", str)
    architectures = Plugins.discover().architectures()
    if model_type not in architectures:
        raise config.unsupported("model_type", "there is no architecture of this type")
    return architectures[model_type]


def find_decoder(config: HFConfig) -> Architecture:
    """The same for callers that need a decoder.

    Raises:
        UnsupportedModelError: no plugin offers one, or the model brings a module of its own.
    """
    architecture = find_architecture(config)
    if isinstance(architecture, ModuleArchitecture):
        raise UnsupportedModelError(
            f"A model of type `{architecture.model_type}` has a module of its own and is no decoder.",
            "Choose one that docs/models/README.md says runs as a spec.",
            ExitCode.MODEL,
        )
    return architecture
