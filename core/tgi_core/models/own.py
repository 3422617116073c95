"""A model that an architecture of ours, or of a plugin, describes."""

from __future__ import annotations

from pathlib import Path

from tgi_core.contract import AttentionSpec, Kernels
from tgi_core.models.architecture import find_architecture
from tgi_core.models.decoder import Decoder, attention_specs
from tgi_core.models.hf_config import HFConfig
from tgi_core.models.loader import load_decoder_weights
from tgi_core.models.model import Loaded, LoadOptions, SlotState
from tgi_core.models.sources import CheckpointSource, RandomSource, WeightSource
from tgi_core.models.spec import RopeSpec
from tgi_core.weights.checkpoint import Checkpoint


class OwnModel:
    """``Decoder`` over the spec of ``config.json``; see ``Model``.

    Raises:
        StartupError: no architecture knows the model, or it has a feature that the architecture does not know.
    """

    reason = ""

    def __init__(self, model_dir: Path, config: HFConfig) -> None:
        self._model_dir = model_dir
        self._architecture = find_architecture(config)
        self.spec = self._architecture.build(config)
        self.path = f"architecture `{self._architecture.model_type}` of tgi-serve"
        self.vocab_size = self.spec.vocab_size
        self.max_positions = self.spec.max_positions
        self.attention: tuple[AttentionSpec, ...] = attention_specs(self.spec)
        self.group_of_layer = tuple(self.spec.windows.index(layer.window) for layer in self.spec.layers)
        self.ropes: tuple[RopeSpec, ...] = self.spec.ropes
        self.states: tuple[SlotState, ...] = ()

    def records(self, kernels: Kernels) -> bool:
        """Whether ``kernels`` can be recorded with all that the model needs of them."""
        return self.spec.experts is None or kernels.captures_experts

    def load(self, options: LoadOptions) -> Loaded:
        """Read, merge and pack the weights."""
        source: WeightSource
        if options.load_format == "dummy":
            source = RandomSource(options.dtype, options.device)
        else:
            checkpoint = Checkpoint.open(self._model_dir)
            source = CheckpointSource(checkpoint, self._architecture, options.dtype, options.device, options.progress)
        weights = load_decoder_weights(self.spec, self._architecture.names, source, options.kernels)
        decoder = Decoder(self.spec, weights, options.kernels, options.attention_kernels)
        return Loaded(decoder, weights.size_bytes)
