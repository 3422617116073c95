"""A loaded transformers model whose attention is ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract import AttentionSpec, Kernels
from tgi_core.models.fallback.hook import attending
from tgi_core.models.fallback.split import SplitModel
from tgi_core.models.step import KVView, Step


class TransformersDecoder:
    """Runs a step's tokens in one row, each with its position; rows of the batch are apart in attention only.

    Args:
        split: the model, built with our attention.
        hidden_E: a row of its hidden states.
        attention: one for each KV group.
        group_of_layer: index into ``attention`` of each layer.
        attention_kernels: for each KV group the kernels that attend.
    """

    def __init__(
        self,
        split: SplitModel,
        hidden_E: Tensor,
        attention: Sequence[AttentionSpec],
        group_of_layer: Sequence[int],
        attention_kernels: Sequence[Kernels],
    ) -> None:
        self.hidden_E = hidden_E
        self._split = split
        self._attention = attention
        self._group_of_layer = group_of_layer
        self._attention_kernels = attention_kernels

    def hidden(self, step: Step) -> Tensor:
        """See ``LoadedModel``."""
        layers = []
        for group, cache_NP2KD in zip(self._group_of_layer, step.caches, strict=True):
            layers.append((self._attention_kernels[group], self._attention[group], step.views[group], cache_NP2KD))
        with attending(_PagedForward(layers)):
            return self._split.hidden(step.ids_T, step.positions_T)

    def logits(self, hidden_BE: Tensor) -> Tensor:
        """See ``LoadedModel``."""
        return self._split.logits(hidden_BE)


class _PagedForward:
    """Attention of one step; each call is the next layer's."""

    def __init__(self, layers: Sequence[tuple[Kernels, AttentionSpec, KVView, Tensor]]) -> None:
        self._layers = iter(layers)

    def __call__(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, arguments: dict[str, Any]) -> Tensor:  # noqa: ARG002
        """See ``Attends``."""
        kernels, spec, view, cache_NP2KD = next(self._layers)
        value_dim = v_TKD.shape[2]
        if value_dim < spec.head_dim:
            # Keys and values share a cache entry of one size.
            v_TKD = F.pad(v_TKD, (0, spec.head_dim - value_dim))
        dtype = cache_NP2KD.dtype
        keys_values = (k_TKD.to(dtype).contiguous(), v_TKD.to(dtype).contiguous())
        kernels.write_kv(keys_values, cache_NP2KD, view.slot_mapping_T)
        output_THD = kernels.attention(q_THD.to(dtype).contiguous(), cache_NP2KD, view.prepared, spec)
        return output_THD[:, :, :value_dim].to(q_THD.dtype)
