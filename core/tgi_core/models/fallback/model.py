"""A model that transformers describes, run over our paged attention."""

from __future__ import annotations

import torch

from tgi_core.contract import AttentionSpec, Kernels
from tgi_core.models.fallback.decoder import TransformersDecoder
from tgi_core.models.fallback.guard import check_model
from tgi_core.models.fallback.hook import build_arguments
from tgi_core.models.fallback.pretrained import Pretrained
from tgi_core.models.fallback.probe import probe
from tgi_core.models.fallback.refusal import refuse
from tgi_core.models.model import Loaded, LoadOptions, SlotState
from tgi_core.models.ropes import RopeSpec


class TransformersModel:
    """See ``Model``.

    Args:
        pretrained: the model's folder.
        reason: why no architecture of ours runs it.

    Raises:
        StartupError: it cannot run over our attention.
    """

    ropes: tuple[RopeSpec, ...] = ()
    states: tuple[SlotState, ...] = ()

    def __init__(self, pretrained: Pretrained, *, reason: str) -> None:
        if pretrained.has_encoder:
            raise refuse("it has an encoder")
        self.reason = reason
        self._pretrained = pretrained
        probed = probe(pretrained)
        self._layers = probed.layers
        self.path = f"transformers' `{probed.class_name}` over paged attention"
        self.vocab_size = probed.vocab_size
        max_positions = pretrained.max_positions
        if max_positions is None:
            raise refuse("its configuration does not say how long a sequence may be")
        self.max_positions = max_positions
        self.attention: tuple[AttentionSpec, ...] = tuple(dict.fromkeys(probed.layers))
        self.group_of_layer = tuple(self.attention.index(layer) for layer in probed.layers)

    def records(self, kernels: Kernels) -> bool:  # noqa: ARG002 - whatever they can
        """Transformers' code may look at values on the host."""
        return False

    @torch.inference_mode()
    def load(self, options: LoadOptions) -> Loaded:
        """Let transformers load its model, then prove that it computes the same over our attention."""
        model = self._pretrained.load(options, **build_arguments(options.dtype))
        split, hidden_E = check_model(model, self._layers)
        decoder = TransformersDecoder(split, hidden_E, self.attention, self.group_of_layer, options.attention_kernels)
        return Loaded(decoder, split.size_bytes())
