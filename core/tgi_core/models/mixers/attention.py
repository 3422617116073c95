"""Attention of a layer: one projection to queries, keys and values, the paged cache, one projection back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract.kernels import Division, HeadNorms, Kernels
from tgi_core.models.layouts import arrange_qkv, split_pairs
from tgi_core.models.linear import Linear
from tgi_core.models.mixers.place import AttentionPlace
from tgi_core.models.names import WeightNames
from tgi_core.models.spec import ArchitectureSpec, QKNorm, QueryTemperature
from tgi_core.models.step import Step
from tgi_core.models.weight_builder import WeightBuilder


class AttentionWeights(NamedTuple):
    """``qkv`` is [(H + 2K) * D, E], ``gate`` [H * D, E], ``o`` [E, H * D]; None is what the model does not have."""

    qkv: Linear
    gate: Linear | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Linear
    sinks_H: Tensor | None


def load_attention(builder: WeightBuilder, spec: ArchitectureSpec, names: WeightNames, layer: int) -> AttentionWeights:
    """Attention of one layer."""
    q_rows = spec.num_heads * spec.head_dim
    o = (names.o.format(layer),)
    qkv, gate = _load_qkv(builder, spec, names, layer)
    return AttentionWeights(
        qkv=qkv,
        gate=gate,
        q_norm=_load_norm(builder, spec, names, (names.q_norm, spec.num_heads), layer),
        k_norm=_load_norm(builder, spec, names, (names.k_norm, spec.num_kv_heads), layer),
        o=builder.linear(
            o,
            (spec.hidden_size,),
            q_rows,
            bias=spec.o_bias,
            transposed=names.transposed,
            division=Division(inputs=True),
        ),
        sinks_H=builder.take(names.sinks.format(layer), (spec.num_heads,)) if spec.attention_sinks else None,
    )


def _load_qkv(
    builder: WeightBuilder, spec: ArchitectureSpec, names: WeightNames, layer: int
) -> tuple[Linear, Linear | None]:
    """Queries, keys and values, and the gate of the output."""
    parts, pack = tuple(name.format(layer) for name in names.qkv), builder.kernels.pack_divided
    q_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    rows = (2 * q_rows if spec.output_gate else q_rows, kv_rows, kv_rows)
    weight = builder.weight(parts, rows, spec.hidden_size, transposed=names.transposed)
    bias = builder.joined(parts, ".bias", rows) if spec.qkv_bias else None
    gate = None
    if spec.output_gate:
        weight, gate_weight = _part_gate(weight, spec)
        bias, gate_bias = (None, None) if bias is None else _part_gate(bias, spec)
        gate = Linear(pack(gate_weight, Division((q_rows,))), gate_bias)
    packed = pack(arrange_qkv(weight, spec, names), Division((q_rows, kv_rows, kv_rows)))
    qkv = Linear(packed, None if bias is None else arrange_qkv(bias, spec, names))
    return qkv, gate


def _part_gate(rows: Tensor, spec: ArchitectureSpec) -> tuple[Tensor, Tensor]:
    """Rows of queries with their gates, keys and values: those of queries, keys and values, and those of the gates."""
    size = spec.num_heads * spec.head_dim
    heads = rows[: 2 * size].view(spec.num_heads, 2, spec.head_dim, *rows.shape[1:])
    return torch.cat((heads[:, 0].flatten(0, 1), rows[2 * size :])), heads[:, 1].flatten(0, 1)


def _load_norm(
    builder: WeightBuilder, spec: ArchitectureSpec, names: WeightNames, heads_named: tuple[str, int], layer: int
) -> Tensor | None:
    """The norm over ``heads`` heads that goes by a name; one weight for each feature of all of them."""
    (name, heads), size = heads_named, spec.head_dim
    match spec.qk_norm:
        case None:
            return None
        case QKNorm.HEAD_PLAIN:
            return None if spec.layers[layer].rope is None else builder.source.ones((size,))
        case QKNorm.HEAD:
            rows = builder.take(f"{name.format(layer)}.weight", (size,))[None]
        case QKNorm.WIDTH:
            rows = builder.take(f"{name.format(layer)}.weight", (heads * size,)).view(heads, size)
        case QKNorm.HEAD_LAYER:
            if name.count("{}") > 1:
                weights = [builder.take(f"{name.format(layer, head)}.weight", (size,)) for head in range(heads)]
                rows = torch.stack(weights)
            else:
                rows = builder.take(f"{name.format(layer)}.weight", (heads, size))
    return split_pairs(rows, spec, names).flatten()


class Attention:
    """See ``Mixer``.

    Args:
        spec: the model.
        weights: of this layer.
        kernels: of everything but attention.
        place: where it attends.
    """

    def __init__(
        self,
        spec: ArchitectureSpec,
        weights: AttentionWeights,
        kernels: Kernels,
        place: AttentionPlace,
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._kernels = kernels
        self._place = place

    def __call__(self, x_TE: Tensor, step: Step) -> Tensor:
        model, weights, spec, kernels = self._spec, self._weights, self._place.spec, self._place.kernels
        view, cache_NP2KD = step.views[self._place.group], step.caches[self._place.cache]
        rotary = None if self._place.rope is None else step.rotaries[self._place.rope]
        qkv_TX = self._kernels.linear(x_TE, weights.qkv.weight, weights.qkv.bias)
        if model.qkv_clip is not None:
            qkv_TX = qkv_TX.clamp(-model.qkv_clip, model.qkv_clip)
        if self._place.rope is None and model.query_temperature is not None:
            _heat_queries(qkv_TX[:, : spec.num_heads * spec.head_dim], step.positions_T, model.query_temperature)
        one_weight = model.qk_norm in (QKNorm.HEAD, QKNorm.HEAD_PLAIN)
        if one_weight and weights.q_norm is not None and weights.k_norm is not None:
            norms = HeadNorms(weights.q_norm, weights.k_norm, model.norm_eps, model.norm_offset)
            q_THD = kernels.norm_rope_write_kv(qkv_TX, spec, rotary, cache_NP2KD, view.slot_mapping_T, norms=norms)
        else:
            self._norm_queries_and_keys(qkv_TX)
            q_THD = kernels.rope_write_kv(qkv_TX, spec, rotary, cache_NP2KD, view.slot_mapping_T)
        output_TX = kernels.attention(q_THD, cache_NP2KD, view.prepared, spec, weights.sinks_H).flatten(1)
        if weights.gate is not None:
            gate_TX = self._kernels.linear(x_TE, weights.gate.weight, weights.gate.bias)
            output_TX = output_TX * torch.sigmoid(gate_TX)
        return self._kernels.linear(output_TX, weights.o.weight, weights.o.bias)

    def _norm_queries_and_keys(self, qkv_TX: Tensor) -> None:
        """The norms that no fused operation has, in place."""
        weights, spec = self._weights, self._spec
        if weights.q_norm is None or weights.k_norm is None:
            return
        q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        for start, size, weight in ((0, q_size, weights.q_norm), (q_size, kv_size, weights.k_norm)):
            part_TX = qkv_TX[:, start : start + size]
            if spec.qk_norm is QKNorm.WIDTH:
                part_TX.copy_(self._kernels.rms_norm(part_TX.contiguous(), weight, spec.norm_eps, spec.norm_offset))
            else:
                heads_XD = part_TX.reshape(-1, spec.head_dim)
                ones_D = weight.new_ones(spec.head_dim)
                normed_XD = self._kernels.layer_norm(heads_XD, ones_D, None, spec.norm_eps)
                part_TX.copy_(normed_XD.view(len(part_TX), -1) * weight.flatten())


def _heat_queries(q_TX: Tensor, positions_T: Tensor, temperature: QueryTemperature) -> None:
    """Multiply the queries of each token, in place."""
    factors_T = 1 + temperature.weight * torch.log1p(torch.floor((positions_T.float() + 1) / temperature.interval))
    q_TX.copy_(q_TX * factors_T[:, None])
