"""The decoder-only transformer: reads a spec, computes through the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract.kernels import AttentionSpec, HeadNorms, Kernels, PackedWeight, PreparedAttention
from tgi_core.models.spec import ArchitectureSpec


class LayerWeights(NamedTuple):
    """The weights of one layer; optional ones are None where the spec has none.

    Linears are packed: ``qkv`` is [(H + 2K) * D, E], ``o`` [E, H * D], ``gate_up`` [2F, E], ``down`` [E, F].
    """

    attention_norm_E: Tensor
    qkv: PackedWeight
    qkv_bias: Tensor | None
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None
    o: PackedWeight
    o_bias: Tensor | None
    attention_out_norm_E: Tensor | None
    mlp_norm_E: Tensor
    gate_up: PackedWeight
    gate_up_bias: Tensor | None
    down: PackedWeight
    down_bias: Tensor | None
    mlp_out_norm_E: Tensor | None


class DecoderWeights(NamedTuple):
    """All weights and the memory they take; ``head`` is packed, [V, E]."""

    embedding_VE: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm_E: Tensor
    head: PackedWeight
    size_bytes: int


class KVView(NamedTuple):
    """One KV group's part of a step.

    Attributes:
        slot_mapping_T: where each token's keys and values go.
        prepared: what ``prepare_attention`` made of the group's batch.
    """

    slot_mapping_T: Tensor
    prepared: PreparedAttention


class Decoder:
    """One model on one device. Holds no state of requests: caches and tables come with each call.

    Args:
        spec: the model.
        weights: loaded and packed by the same ``kernels``.
        kernels: every operation but attention.
        attention_kernels: for each window of ``spec.windows`` the kernels that attend.

    Attributes:
        group_of_layer: index into ``spec.windows`` of each layer.
    """

    def __init__(
        self,
        spec: ArchitectureSpec,
        weights: DecoderWeights,
        kernels: Kernels,
        attention_kernels: Sequence[Kernels],
    ) -> None:
        self.spec = spec
        self._weights = weights
        self._kernels = kernels
        self._attention_kernels = tuple(attention_kernels)
        self._attention_specs = attention_specs(spec)
        self.group_of_layer = tuple(spec.windows.index(layer.window) for layer in spec.layers)
        # Rounded to the weights' type first, as the models were trained.
        dtype = weights.embedding_VE.dtype
        self._embedding_scale = float(torch.tensor(spec.embedding_scale, dtype=dtype))
        layers = weights.layers
        self._norms_after_mlp = [*(layer.attention_norm_E for layer in layers[1:]), weights.final_norm_E]

    @property
    def hidden_E(self) -> Tensor:
        """A row as ``hidden`` returns it, for its size and type."""
        return self._weights.final_norm_E

    def hidden(
        self,
        ids_T: Tensor,
        rotaries: Sequence[tuple[Tensor, Tensor]],
        views: Sequence[KVView],
        caches: Sequence[Tensor],
    ) -> Tensor:
        """Run all layers: token ids [T] -> normed hidden states [T, E]; writes keys and values of the tokens.

        Args:
            ids_T: token ids.
            rotaries: (cos, sin) of the tokens' positions, for each of ``spec.ropes``.
            views: one for each of ``spec.windows``.
            caches: one a layer, [N, P, 2, K, D].
        """
        spec, kernels = self.spec, self._kernels
        eps, offset = spec.norm_eps, spec.norm_offset
        residual_TE = kernels.embedding(ids_T, self._weights.embedding_VE)
        if spec.embedding_scale != 1.0:
            residual_TE = residual_TE * self._embedding_scale
        x_TE = kernels.rms_norm(residual_TE, self._weights.layers[0].attention_norm_E, eps, offset)
        for index, layer in enumerate(self._weights.layers):
            rotary, view = rotaries[spec.layers[index].rope], views[self.group_of_layer[index]]
            x_TE = self._attention(x_TE, index, rotary, view, caches[index])
            if layer.attention_out_norm_E is not None:
                x_TE = kernels.rms_norm(x_TE, layer.attention_out_norm_E, eps, offset)
            x_TE, residual_TE = kernels.add_rms_norm(x_TE, residual_TE, layer.mlp_norm_E, eps, offset)
            x_TF = kernels.gated_linear(x_TE, layer.gate_up, layer.gate_up_bias, spec.activation)
            x_TE = kernels.linear(x_TF, layer.down, layer.down_bias)
            if layer.mlp_out_norm_E is not None:
                x_TE = kernels.rms_norm(x_TE, layer.mlp_out_norm_E, eps, offset)
            x_TE, residual_TE = kernels.add_rms_norm(x_TE, residual_TE, self._norms_after_mlp[index], eps, offset)
        return x_TE

    def logits(self, hidden_BE: Tensor) -> Tensor:
        """The head: hidden states of the rows that sample -> [B, V]."""
        logits_BV = self._kernels.linear(hidden_BE, self._weights.head, None)
        cap = self.spec.final_soft_cap
        if cap is not None:
            logits_BV = torch.tanh(logits_BV.float() / cap) * cap
        return logits_BV

    def _attention(
        self,
        x_TE: Tensor,
        index: int,
        rotary: tuple[Tensor, Tensor],
        view: KVView,
        cache_NP2KD: Tensor,
    ) -> Tensor:
        layer, group = self._weights.layers[index], self.group_of_layer[index]
        kernels, spec = self._attention_kernels[group], self._attention_specs[group]
        qkv_TX = self._kernels.linear(x_TE, layer.qkv, layer.qkv_bias)
        if layer.q_norm_D is not None and layer.k_norm_D is not None:
            norms = HeadNorms(layer.q_norm_D, layer.k_norm_D, self.spec.norm_eps, self.spec.norm_offset)
            q_THD = kernels.norm_rope_write_kv(qkv_TX, spec, rotary, cache_NP2KD, view.slot_mapping_T, norms=norms)
        else:
            q_THD = kernels.rope_write_kv(qkv_TX, spec, rotary, cache_NP2KD, view.slot_mapping_T)
        output_THD = kernels.attention(q_THD, cache_NP2KD, view.prepared, spec)
        return self._kernels.linear(output_THD.flatten(1), layer.o, layer.o_bias)


def attention_specs(spec: ArchitectureSpec) -> tuple[AttentionSpec, ...]:
    """The attention of each window of ``spec.windows``."""
    return tuple(
        AttentionSpec(
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            scale=spec.attention_scale,
            window=window,
            soft_cap=spec.attention_soft_cap,
        )
        for window in spec.windows
    )
