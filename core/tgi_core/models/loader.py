"""Brings a model's weights onto the device: takes, merges, arranges and packs them, one layer after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_core.contract.kernels import Kernels
from tgi_core.models.decoder_weights import (
    DecoderWeights,
    ExpertMLPWeights,
    LayerWeights,
    Linear,
    MLPWeights,
    NormWeights,
)
from tgi_core.models.expert_layouts import take_experts
from tgi_core.models.layouts import arrange_qkv, split_pairs, unit_rows
from tgi_core.models.sources import WeightSource
from tgi_core.models.spec import ArchitectureSpec, Block, ExpertsSpec, Norm, QKNorm, WeightNames


def load_decoder_weights(
    spec: ArchitectureSpec, names: WeightNames, source: WeightSource, kernels: Kernels
) -> DecoderWeights:
    """Take every weight of the model and pack the linears.

    A merged weight is made, packed and its parts dropped before the next is read: no more than one of them is held
    twice.

    Raises:
        StartupError: tensors are missing, left over or of the wrong shape.
    """
    builder = _Builder(spec, names, source, kernels)
    hidden, width = spec.hidden_size, spec.embedding_size or spec.hidden_size
    embedding_VE = builder.take(f"{names.embedding}.weight", (spec.vocab_size, width))
    positions_PE = None
    if spec.learned_positions is not None:
        positions_PE = builder.take(f"{names.positions}.weight", (spec.learned_positions, hidden))
    projects = spec.embedding_size is not None
    weights = DecoderWeights(
        embedding_VE=embedding_VE,
        layers=tuple(builder.layer(index) for index in range(len(spec.layers))),
        final_norm=builder.norm(names.final_norm) if spec.block is not Block.POST else None,
        head=builder.head(embedding_VE),
        size_bytes=0,
        embedding_norm=builder.norm(names.embedding_norm) if spec.embedding_norm else None,
        positions_PE=positions_PE,
        project_in=builder.linear((names.project_in,), (hidden,), width, bias=False) if projects else None,
        project_out=builder.linear((names.project_out,), (width,), hidden, bias=False) if projects else None,
    )
    source.finish()
    return weights._replace(size_bytes=builder.size_bytes)


class _Builder:
    """Builds layers out of a source and counts their bytes."""

    def __init__(self, spec: ArchitectureSpec, names: WeightNames, source: WeightSource, kernels: Kernels) -> None:
        self._spec = spec
        self._names = names
        self._source = source
        self._kernels = kernels
        self.size_bytes = 0

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor, counted."""
        tensor = self._source.take(name, shape)
        self.size_bytes += tensor.nbytes
        return tensor

    def head(self, embedding_VE: Tensor) -> Linear:
        """The head, or the embedding table in its place."""
        spec, name = self._spec, self._names.head
        if spec.tied_head:
            self._source.drop(f"{name}.weight")
            weight_VE = embedding_VE
        else:
            weight_VE = self.take(f"{name}.weight", (spec.vocab_size, embedding_VE.shape[1]))
        if spec.unit_head_rows:
            weight_VE = unit_rows(weight_VE)
        weight = self._kernels.pack_linear(weight_VE)
        if spec.tied_head and weight is not embedding_VE:
            # A device that packs has the table a second time, in the form its linears want.
            self.size_bytes += embedding_VE.nbytes
        return Linear(weight, self.take(f"{name}.bias", (spec.vocab_size,)) if spec.head_bias else None)

    def layer(self, index: int) -> LayerWeights:
        """Layer ``index``."""
        spec, names = self._spec, self._names
        block = spec.block
        q_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        o = (names.o.format(index),)
        attention_norm = self.norm(names.attention_norm, index) if block is not Block.OUT else None
        mlp_norm = self.norm(names.mlp_norm, index) if block not in (Block.OUT, Block.PARALLEL) else None
        attention_out_norm = mlp_out_norm = None
        if block in (Block.SANDWICH, Block.OUT):
            attention_out_norm = self.norm(names.attention_out_norm, index)
            mlp_out_norm = self.norm(names.mlp_out_norm, index)
        elif block is Block.POST:
            attention_norm, mlp_norm, mlp_out_norm = None, attention_norm, mlp_norm
        return LayerWeights(
            attention_norm=attention_norm,
            qkv=self._qkv(index, (q_rows, kv_rows, kv_rows)),
            q_norm=self._head_norm(names.q_norm, index, spec.num_heads),
            k_norm=self._head_norm(names.k_norm, index, spec.num_kv_heads),
            o=self.linear(o, (spec.hidden_size,), q_rows, bias=spec.o_bias, transposed=names.transposed),
            attention_out_norm=attention_out_norm,
            mlp_norm=mlp_norm,
            mlp=self._mlp(index),
            mlp_out_norm=mlp_out_norm,
            sinks_H=self.take(names.sinks.format(index), (spec.num_heads,)) if spec.attention_sinks else None,
        )

    def linear(
        self, names: Sequence[str], rows: Sequence[int], inputs: int, *, bias: bool, transposed: bool = False
    ) -> Linear:
        """A linear whose parts, of ``rows`` rows each, the checkpoint keeps under ``names``."""
        weight = self._kernels.pack_linear(self._weight(names, rows, inputs, transposed=transposed))
        return Linear(weight, self._joined(names, ".bias", rows) if bias else None)

    def norm(self, name: str, index: int = 0) -> NormWeights:
        """One of the norms over the hidden size."""
        kind, shape = self._spec.norm, (self._spec.hidden_size,)
        name = name.format(index)
        if kind is Norm.LAYER_PLAIN:
            return NormWeights(self._source.ones(shape))
        weight = self.take(f"{name}.weight", shape)
        return NormWeights(weight, self.take(f"{name}.bias", shape) if kind is Norm.LAYER_BIAS else None)

    def _qkv(self, index: int, rows: tuple[int, int, int]) -> Linear:
        spec, names = self._spec, self._names
        parts = tuple(name.format(index) for name in names.qkv)
        weight = self._weight(parts, rows, spec.hidden_size, transposed=names.transposed)
        packed = self._kernels.pack_linear(arrange_qkv(weight, spec, names))
        return Linear(packed, arrange_qkv(self._joined(parts, ".bias", rows), spec, names) if spec.qkv_bias else None)

    def _head_norm(self, name: str, index: int, heads: int) -> Tensor | None:
        spec, size = self._spec, self._spec.head_dim
        match spec.qk_norm:
            case None:
                return None
            case QKNorm.HEAD:
                rows = self.take(f"{name.format(index)}.weight", (size,))[None]
            case QKNorm.WIDTH:
                rows = self.take(f"{name.format(index)}.weight", (heads * size,)).view(heads, size)
            case QKNorm.HEAD_LAYER:
                if name.count("{}") > 1:
                    weights = [self.take(f"{name.format(index, head)}.weight", (size,)) for head in range(heads)]
                    rows = torch.stack(weights)
                else:
                    rows = self.take(f"{name.format(index)}.weight", (heads, size))
        return split_pairs(rows, spec, self._names).flatten()

    def _mlp(self, index: int) -> MLPWeights | ExpertMLPWeights:
        spec, names = self._spec, self._names
        if spec.layers[index].has_experts and spec.experts is not None:
            return self._experts(spec.experts, index)
        return self._dense(names.gate_up, names.down, spec.intermediate_size, index)

    def _dense(self, gate_up: tuple[str, ...], down: str, inner: int, index: int) -> MLPWeights:
        spec, transposed = self._spec, self._names.transposed
        up = tuple(name.format(index) for name in gate_up)
        rows = (inner, inner) if spec.gated else (inner,)
        down_rows = (spec.hidden_size,)
        return MLPWeights(
            up=self.linear(up, rows, spec.hidden_size, bias=spec.mlp_bias, transposed=transposed),
            down=self.linear((down.format(index),), down_rows, inner, bias=spec.mlp_bias, transposed=transposed),
        )

    def _experts(self, experts: ExpertsSpec, index: int) -> ExpertMLPWeights:
        names, hidden, count = self._names.experts, self._spec.hidden_size, experts.num_experts
        shared = shared_gate = bias_X = None
        if experts.shared_size is not None:
            shared = self._dense(names.shared_gate_up, names.shared_down, experts.shared_size, index)
            if experts.shared_gate:
                shared_gate = self.linear((names.shared_gate.format(index),), (1,), hidden, bias=False)
        if experts.selection_bias:
            bias_X = self.take(names.selection_bias.format(index), (count,))
        return ExpertMLPWeights(
            router=self.linear((names.router.format(index),), (count,), hidden, bias=experts.router_bias),
            selection_bias_X=bias_X,
            experts=take_experts(experts, names, hidden, layer=index, take=self.take, kernels=self._kernels),
            shared=shared,
            shared_gate=shared_gate,
        )

    def _weight(self, names: Sequence[str], rows: Sequence[int], inputs: int, *, transposed: bool) -> Tensor:
        if not transposed:
            return self._joined(names, ".weight", rows, (inputs,))
        parts = [self.take(f"{name}.weight", (inputs, size)).t() for name, size in _named_parts(names, rows)]
        return torch.cat(parts).contiguous()

    def _joined(self, names: Sequence[str], suffix: str, rows: Sequence[int], rest: tuple[int, ...] = ()) -> Tensor:
        parts = [self.take(name + suffix, (size, *rest)) for name, size in _named_parts(names, rows)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _named_parts(names: Sequence[str], rows: Sequence[int]) -> list[tuple[str, int]]:
    # One name for several parts is a checkpoint that stores them merged.
    sizes = rows if len(names) == len(rows) else (sum(rows),)
    return list(zip(names, sizes, strict=True))
