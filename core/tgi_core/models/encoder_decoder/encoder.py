"""The encoder: reads whole inputs, and leaves what the decoder's cross-attention looks at in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract.kernels import Kernels
from tgi_core.models.encoder_decoder.layers import Layers
from tgi_core.models.encoder_decoder.spec import EncoderDecoderSpec
from tgi_core.models.encoder_decoder.weights import EncoderDecoderWeights, SelfWeights
from tgi_core.models.step import EncoderStep

_PIECE_QUERIES = 256
"""Queries whose biases on all keys exist at the same time: those of a whole input grow with its square."""


class Encoder:
    """See ``tgi_core.models.model.Encoder``.

    Args:
        spec: the model.
        weights: loaded and packed by the same ``kernels``.
        kernels: every operation but attention.
        cross_kernels: those that attend to what is written here.

    Attributes:
        max_tokens: longest input the model was made for.
    """

    def __init__(
        self, spec: EncoderDecoderSpec, weights: EncoderDecoderWeights, kernels: Kernels, cross_kernels: Kernels
    ) -> None:
        self.max_tokens = spec.max_positions
        self._spec = spec
        self._weights = weights.encoder
        self._cross = [layer.cross for layer in weights.decoder.layers if layer.cross is not None]
        self._cross_kernels = cross_kernels
        self._layers = Layers(spec, weights.encoder, kernels, norms_first=False)

    def __call__(self, step: EncoderStep) -> None:
        """Compute the inputs and write keys and values of every decoder layer."""
        layers = self._layers
        x_TE = layers.embed(step.ids_T, step.positions_T)
        for layer in self._weights.layers:
            x_TE = layers.add(x_TE, partial(self._attend, layer.attention, step.lens), layer.attention.norm)
            x_TE = layers.add(x_TE, partial(layers.mlp, mlp=layer.mlp), layer.mlp_norm)
        x_TE = layers.norm(x_TE, self._weights.final_norm)
        stack = self._spec.decoder
        caches = step.caches[stack.num_layers :]
        for cross, cache_NP2KD in zip(self._cross, caches, strict=True):
            kv_T2KD = layers.linear(x_TE, cross.kv).view(-1, 2, stack.num_heads, stack.head_dim)
            kv = (kv_T2KD[:, 0], kv_T2KD[:, 1])
            self._cross_kernels.write_kv(kv, cache_NP2KD, step.slot_mapping_T)

    def _attend(self, weights: SelfWeights, lens: Sequence[int], x_TE: Tensor) -> Tensor:
        """Every token sees all tokens of its input."""
        stack = self._spec.encoder
        qkv_T3HD = self._layers.linear(x_TE, weights.qkv).view(-1, 3, stack.num_heads, stack.head_dim)
        outputs = []
        for qkv_L3HD in torch.split(qkv_T3HD, list(lens)):
            q_HLD, k_HLD, v_HLD = qkv_L3HD.permute(1, 2, 0, 3)
            outputs += self._attend_one(q_HLD, k_HLD, v_HLD, weights.bias_HX)
        return self._layers.linear(torch.cat(outputs).flatten(1), weights.o)

    def _attend_one(self, q_HLD: Tensor, k_HLD: Tensor, v_HLD: Tensor, bias_HX: Tensor | None) -> list[Tensor]:
        """One input, in pieces [., H, D] of its queries."""
        scale = self._spec.attention_scale(self._spec.encoder)
        if bias_HX is None:
            attended_1HLD = F.scaled_dot_product_attention(q_HLD[None], k_HLD[None], v_HLD[None], scale=scale)
            return [attended_1HLD[0].transpose(0, 1)]
        pieces = []
        num_tokens, furthest = q_HLD.shape[1], bias_HX.shape[1] // 2
        positions_L = torch.arange(num_tokens, device=q_HLD.device)
        for start in range(0, num_tokens, _PIECE_QUERIES):
            queries_Q = positions_L[start : start + _PIECE_QUERIES]
            columns_QL = (positions_L - queries_Q[:, None]).clamp(-furthest, furthest) + furthest
            attended_1HQD = F.scaled_dot_product_attention(
                q_HLD[None, :, start : start + _PIECE_QUERIES],
                k_HLD[None],
                v_HLD[None],
                attn_mask=bias_HX[:, columns_QL][None],
                scale=scale,
            )
            pieces.append(attended_1HQD[0].transpose(0, 1))
        return pieces
