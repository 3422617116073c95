"""Multi-head latent attention: the cache holds one compressed row a token, of which all keys and values are made.

The absorbed form: a head's query is taken to the compressed features and meets the cached row itself, and what
attention returns, still compressed, becomes the head's value after it. So attention has one key head of L + R features
whatever the number of heads, and no key or value is ever made. Source: DeepSeek-AI 2024.

Shape letters beside the usual ones: L compressed features, N and R unrotated and rotated features of a head's query,
U features of its value.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract.kernels import Kernels
from tgi_core.models.layouts import split_last_pairs
from tgi_core.models.linear import Linear
from tgi_core.models.mixers.place import AttentionPlace
from tgi_core.models.names import LatentNames, WeightNames
from tgi_core.models.spec import ArchitectureSpec, LatentSpec
from tgi_core.models.step import Step
from tgi_core.models.weight_builder import WeightBuilder


class LatentWeights(NamedTuple):
    """The weights of one layer.

    ``q`` is [H * (N + R), Q], of the normed outputs of ``q_down`` [Q, E] or, where that is None, of the hidden states.
    ``kv_down`` is [L + R, E], ``o`` is [E, H * U]. The last two are views of the one matrix a checkpoint has of both.
    """

    q_down: Linear | None
    q_norm_Q: Tensor | None
    q: Linear
    kv_down: Linear
    kv_norm_L: Tensor
    o: Linear
    keys_HNL: Tensor
    values_HUL: Tensor


def load_latent(
    builder: WeightBuilder, spec: ArchitectureSpec, latent: LatentSpec, names: WeightNames, layer: int
) -> LatentWeights:
    """Latent attention of one layer."""
    where, hidden, heads, kernels = names.latent, spec.hidden_size, spec.num_heads, builder.kernels
    q_down = q_norm_Q = None
    if latent.query_rank is not None:
        q_down = builder.linear((where.q_down.format(layer),), (latent.query_rank,), hidden, bias=spec.qkv_bias)
        q_norm_Q = builder.take(f"{where.q_norm.format(layer)}.weight", (latent.query_rank,))
    kv_up = builder.take(
        f"{where.kv_up.format(layer)}.weight", (heads * (latent.unrotated_dim + latent.value_dim), latent.rank)
    )
    parts = [latent.unrotated_dim, latent.value_dim]
    keys_HNL, values_HUL = torch.split(kv_up.view(heads, -1, latent.rank), parts, dim=1)
    return LatentWeights(
        q_down=q_down,
        q_norm_Q=q_norm_Q,
        q=Linear(kernels.pack_linear(_take_queries(builder, spec, latent, where, layer))),
        kv_down=_take_row(builder, spec, latent, where.kv_down.format(layer)),
        kv_norm_L=builder.take(f"{where.kv_norm.format(layer)}.weight", (latent.rank,)),
        o=builder.linear((names.o.format(layer),), (hidden,), heads * latent.value_dim, bias=spec.o_bias),
        keys_HNL=keys_HNL,
        values_HUL=values_HUL,
    )


def _take_queries(
    builder: WeightBuilder, spec: ArchitectureSpec, latent: LatentSpec, names: LatentNames, layer: int
) -> Tensor:
    name, inputs = (names.q, spec.hidden_size) if latent.query_rank is None else (names.q_up, latent.query_rank)
    rows = spec.num_heads * (latent.unrotated_dim + latent.rotated_dim)
    weight = builder.weight((name.format(layer),), (rows,), inputs).view(spec.num_heads, -1, inputs)
    return split_last_pairs(weight, latent).flatten(0, 1)


def _take_row(builder: WeightBuilder, spec: ArchitectureSpec, latent: LatentSpec, name: str) -> Linear:
    """The projection to what is cached."""
    rows = latent.rank + latent.rotated_dim
    weight = split_last_pairs(builder.weight((name,), (rows,), spec.hidden_size)[None], latent)[0]
    bias = split_last_pairs(builder.take(f"{name}.bias", (rows,))[None], latent)[0] if spec.qkv_bias else None
    return Linear(builder.kernels.pack_linear(weight), bias)


class LatentAttention:
    """See ``Mixer``.

    Args:
        latent: what the spec says of it.
        weights: of this layer.
        kernels: of everything but attention.
        place: where it attends; a rotary turns queries and keys.
    """

    def __init__(
        self,
        latent: LatentSpec,
        weights: LatentWeights,
        kernels: Kernels,
        place: AttentionPlace,
    ) -> None:
        self._latent = latent
        self._weights = weights
        self._kernels = kernels
        self._place = place

    def __call__(self, x_TE: Tensor, step: Step) -> Tensor:
        weights, spec, kernels = self._weights, self._place.spec, self._place.kernels
        view, cache_NP1D = step.views[self._place.group], step.caches[self._place.cache]
        assert self._place.rope is not None, "latent attention rotates"
        rotary = step.rotaries[self._place.rope]
        # Before attention, which reads them back.
        kernels.write_kv((self._rows(x_TE, rotary),), cache_NP1D, view.slot_mapping_T)
        attended_THL = kernels.attention(self._queries(x_TE, rotary), cache_NP1D, view.prepared, spec)
        values_HTU = torch.bmm(attended_THL.transpose(0, 1), weights.values_HUL.transpose(1, 2))
        return self._linear(values_HTU.transpose(0, 1).flatten(1), weights.o)

    def _rows(self, x_TE: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """What is cached of each token, [T, 1, L + R]."""
        row_TX = self._linear(x_TE, self._weights.kv_down)
        latent_TL = self._norm(row_TX[:, : self._latent.rank].contiguous(), self._weights.kv_norm_L)
        rotated_T1R = self._kernels.rope(row_TX[:, None, self._latent.rank :].contiguous(), *rotary)
        return torch.cat((latent_TL[:, None], rotated_T1R), dim=-1)

    def _queries(self, x_TE: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Queries as they meet the cached rows, [T, H, L + R]."""
        weights, latent = self._weights, self._latent
        if weights.q_down is not None and weights.q_norm_Q is not None:
            x_TE = self._norm(self._linear(x_TE, weights.q_down), weights.q_norm_Q)
        q_THX = self._linear(x_TE, weights.q).view(len(x_TE), self._place.spec.num_heads, -1)
        unrotated_HTN = q_THX[..., : latent.unrotated_dim].transpose(0, 1)
        absorbed_THL = torch.bmm(unrotated_HTN, weights.keys_HNL).transpose(0, 1)
        rotated_THR = self._kernels.rope(q_THX[..., latent.unrotated_dim :].contiguous(), *rotary)
        return torch.cat((absorbed_THL, rotated_THR), dim=-1)

    def _linear(self, x_TK: Tensor, linear: Linear) -> Tensor:
        return self._kernels.linear(x_TK, linear.weight, linear.bias)

    def _norm(self, x_TX: Tensor, weight_X: Tensor) -> Tensor:
        return self._kernels.rms_norm(x_TX, weight_X, self._latent.norm_eps, 0.0)
