"""An encoder-decoder as a shard sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from tgi_core.contract import AttentionSpec, Kernels
from tgi_core.model_folder import ModelFolder
from tgi_core.models.encoder_decoder.decoder import CROSS_GROUP, SELF_GROUP, CrossDecoder
from tgi_core.models.encoder_decoder.encoder import Encoder
from tgi_core.models.encoder_decoder.spec import EncoderDecoderNames, EncoderDecoderSpec
from tgi_core.models.encoder_decoder.weights import load_weights
from tgi_core.models.family import ModuleArchitecture
from tgi_core.models.hf_config import HFConfig
from tgi_core.models.model import Loaded, LoadOptions, SlotState
from tgi_core.models.opening import open_weights
from tgi_core.models.ropes import RopeSpec
from tgi_core.models.weight_builder import WeightBuilder


class EncoderDecoderModel:
    """``Encoder`` and ``CrossDecoder`` over a spec; see ``Model``."""

    reason = ""

    def __init__(
        self,
        architecture: ModuleArchitecture,
        model_dir: Path,
        spec: EncoderDecoderSpec,
        names: EncoderDecoderNames,
    ) -> None:
        self._architecture = architecture
        self._model_dir = model_dir
        self._names = names
        self._attention = attention_specs(spec)
        self.spec = spec
        self.path = architecture.path
        self.vocab_size = spec.vocab_size
        self.max_positions = spec.max_positions
        self.attention: tuple[AttentionSpec, ...] = self._attention
        num_layers = spec.decoder.num_layers
        self.group_of_layer = (SELF_GROUP,) * num_layers + (CROSS_GROUP,) * num_layers
        self.ropes: tuple[RopeSpec, ...] = ()
        self.states: tuple[SlotState, ...] = ()

    def records(self, kernels: Kernels) -> bool:  # noqa: ARG002
        """Not as a graph: a step of decodes reads the inputs' lengths on the host."""
        return False

    def load(self, options: LoadOptions) -> Loaded:
        """Read, merge and pack the weights."""
        source = open_weights(self._model_dir, self._architecture, options)
        weights = load_weights(self.spec, self._names, WeightBuilder(source, options.kernels))
        kernels = options.kernels
        decoder = CrossDecoder(self.spec, weights, kernels, options.attention_kernels, self._attention)
        encoder = Encoder(self.spec, weights, kernels, options.attention_kernels[CROSS_GROUP])
        return Loaded(decoder, weights.size_bytes, source.notes, encoder=encoder)


def attention_specs(spec: EncoderDecoderSpec) -> tuple[AttentionSpec, AttentionSpec]:
    """The decoder's attention to its own tokens, and to the encoder's."""
    stack = spec.decoder
    heads, scale = stack.num_heads, spec.attention_scale(stack)
    distances = None if spec.distances is None else spec.distances.max_distance + 1
    return (
        AttentionSpec(num_heads=heads, num_kv_heads=heads, head_dim=stack.head_dim, scale=scale, distances=distances),
        AttentionSpec(num_heads=heads, num_kv_heads=heads, head_dim=stack.head_dim, scale=scale, cross=True),
    )


def make_architecture(
    model_type: str,
    build: Callable[[HFConfig], EncoderDecoderSpec],
    names: Callable[[EncoderDecoderSpec], EncoderDecoderNames],
    *,
    renames: tuple[tuple[str, str], ...] = (),
    ignored: tuple[str, ...] = (),
) -> ModuleArchitecture:
    """A family: ``build`` reads a configuration, ``names`` says where a checkpoint keeps the weights."""

    def describe(family: ModuleArchitecture, model_dir: Path, config: HFConfig) -> EncoderDecoderModel:
        spec = replace(build(config), suppressed=ModelFolder(model_dir).suppressed_token_ids)
        return EncoderDecoderModel(family, model_dir, spec, names(spec))

    return ModuleArchitecture(model_type=model_type, open=describe, renames=renames, ignored=ignored)
