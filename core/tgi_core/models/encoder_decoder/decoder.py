"""The decoder: attends to its own tokens, then to the encoder's, both in the paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from tgi_core.contract.kernels import AttentionSpec, Kernels
from tgi_core.models.encoder_decoder.layers import Layers
from tgi_core.models.encoder_decoder.spec import EncoderDecoderSpec
from tgi_core.models.encoder_decoder.weights import CrossWeights, EncoderDecoderWeights, SelfWeights
from tgi_core.models.step import Step

SELF_GROUP, CROSS_GROUP = 0, 1


class CrossDecoder:
    """See ``LoadedModel``. Layer i's own tokens are in cache i, the encoder's in cache i behind all of those.

    Args:
        spec: the model.
        weights: loaded and packed by the same ``kernels``.
        kernels: every operation but attention.
        attention_kernels: of the decoder's own tokens, and of the encoder's.
        attention: of the same two.

    Attributes:
        hidden_E: a row as ``hidden`` returns it, for its size and type.
    """

    def __init__(
        self,
        spec: EncoderDecoderSpec,
        weights: EncoderDecoderWeights,
        kernels: Kernels,
        attention_kernels: Sequence[Kernels],
        attention: tuple[AttentionSpec, AttentionSpec],
    ) -> None:
        self._spec = spec
        self._weights = weights.decoder
        self._head = weights.head
        self._kernels = attention_kernels
        self._attention = attention
        self._layers = Layers(spec, weights.decoder, kernels, norms_first=spec.decoder_norms_first)
        self.hidden_E = weights.decoder.embedding_VE.new_zeros(spec.hidden_size)

    def hidden(self, step: Step) -> Tensor:
        """Run all layers: the step's tokens -> hidden states [T, E]; writes the caches of the decoder's own tokens."""
        layers = self._layers
        x_TE = layers.embed(step.ids_T, step.positions_T)
        for index, layer in enumerate(self._weights.layers):
            x_TE = layers.add(x_TE, partial(self._attend, layer.attention, index, step), layer.attention.norm)
            if layer.cross is not None:
                x_TE = layers.add(x_TE, partial(self._look_across, layer.cross, index, step), layer.cross.norm)
            x_TE = layers.add(x_TE, partial(layers.mlp, mlp=layer.mlp), layer.mlp_norm)
        return layers.norm(x_TE, self._weights.final_norm)

    def logits(self, hidden_BE: Tensor) -> Tensor:
        """The head: hidden states of the rows that sample -> [B, V]."""
        if self._spec.logit_scale != 1.0:
            hidden_BE = hidden_BE * self._spec.logit_scale
        return self._layers.linear(hidden_BE, self._head)

    def _attend(self, weights: SelfWeights, index: int, step: Step, x_TE: Tensor) -> Tensor:
        kernels, spec, view = self._kernels[SELF_GROUP], self._attention[SELF_GROUP], step.views[SELF_GROUP]
        cache_NP2KD = step.caches[index]
        qkv_TX = self._layers.linear(x_TE, weights.qkv)
        q_THD = kernels.rope_write_kv(qkv_TX, spec, None, cache_NP2KD, view.slot_mapping_T)
        output_THD = kernels.attention(q_THD, cache_NP2KD, view.prepared, spec, distance_bias_HX=weights.bias_HX)
        return self._layers.linear(output_THD.flatten(1), weights.o)

    def _look_across(self, weights: CrossWeights, index: int, step: Step, x_TE: Tensor) -> Tensor:
        kernels, spec, view = self._kernels[CROSS_GROUP], self._attention[CROSS_GROUP], step.views[CROSS_GROUP]
        q_THD = self._layers.linear(x_TE, weights.q).view(-1, spec.num_heads, spec.head_dim)
        cache_NP2KD = step.caches[self._spec.decoder.num_layers + index]
        output_THD = kernels.attention(q_THD, cache_NP2KD, view.prepared, spec)
        return self._layers.linear(output_THD.flatten(1), weights.o)
