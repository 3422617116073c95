"""A model that an architecture of ours, or of a plugin, knows."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tgi_core.contract import AttentionSpec, Kernels
from tgi_core.models.architecture import find_architecture
from tgi_core.models.decoder import Decoder, attention_specs, slot_states
from tgi_core.models.family import Architecture, ModuleArchitecture
from tgi_core.models.hf_config import HFConfig
from tgi_core.models.loader import load_decoder_weights
from tgi_core.models.model import Loaded, LoadOptions, Model, SlotState
from tgi_core.models.opening import open_weights
from tgi_core.models.ropes import RopeSpec


def open_own(model_dir: Path, config: HFConfig) -> Model:
    """The model in ``model_dir``, by the architecture of its ``model_type``.

    Raises:
        StartupError: no architecture knows the model, or it has a feature that the architecture does not know.
    """
    architecture = find_architecture(config)
    if isinstance(architecture, ModuleArchitecture):
        return architecture.open(architecture, model_dir, config)
    return OwnModel(architecture, model_dir, config)


class OwnModel:
    """``Decoder`` over the spec of ``config.json``; see ``Model``.

    Raises:
        StartupError: the model has a feature that the architecture does not know.
    """

    reason = ""

    def __init__(self, architecture: Architecture, model_dir: Path, config: HFConfig) -> None:
        self._model_dir = model_dir
        self._architecture = architecture
        self.spec = architecture.build(config)
        self.path = architecture.path
        self.vocab_size = self.spec.vocab_size
        self.max_positions = self.spec.max_positions
        self.attention: tuple[AttentionSpec, ...] = attention_specs(self.spec)
        windows = [layer.window for layer in self.spec.layers if not layer.has_delta_net]
        self.group_of_layer = tuple(map(self.spec.windows.index, windows))
        self.ropes: tuple[RopeSpec, ...] = self.spec.ropes
        self.states: tuple[SlotState, ...] = slot_states(self.spec)

    def records(self, kernels: Kernels) -> bool:
        """Whether ``kernels`` can be recorded with all that the model needs of them."""
        experts_recorded = self.spec.experts is None or kernels.captures_experts
        return experts_recorded and (not self.states or kernels.captures_states)

    def load(self, options: LoadOptions) -> Loaded:
        """Read, merge and pack the weights."""
        family = replace(self._architecture, ignored=(*self._architecture.ignored, *self.spec.ignored))
        source = open_weights(self._model_dir, family, options)
        weights = load_decoder_weights(self.spec, self._architecture.names, source, options.kernels)
        decoder = Decoder(self.spec, weights, options.kernels, options.attention_kernels)
        return Loaded(decoder, weights.size_bytes, source.notes)
