"""Brings a model's weights onto the device: takes, merges, arranges and packs them, one layer after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.contract.kernels import Division, Kernels
from tgi_core.models.decoder_weights import DecoderWeights, ExpertMLPWeights, LayerWeights, MixerWeights, MLPWeights
from tgi_core.models.expert_layouts import take_experts
from tgi_core.models.layouts import unit_rows
from tgi_core.models.linear import Linear, NormWeights
from tgi_core.models.mixers.attention import load_attention
from tgi_core.models.mixers.delta_net import load_delta_net
from tgi_core.models.mixers.latent import load_latent
from tgi_core.models.names import WeightNames
from tgi_core.models.sources import WeightSource
from tgi_core.models.spec import ArchitectureSpec, Block, ExpertsSpec
from tgi_core.models.weight_builder import WeightBuilder


def load_decoder_weights(
    spec: ArchitectureSpec, names: WeightNames, source: WeightSource, kernels: Kernels
) -> DecoderWeights:
    """Take every weight of the model and pack the linears.

    Raises:
        StartupError: tensors are missing, left over or of the wrong shape.
    """
    builder = WeightBuilder(source, kernels)
    layers = _Layers(spec, names, builder)
    hidden, width = spec.hidden_size, spec.embedding_size or spec.hidden_size
    embedding_VE = builder.take(f"{names.embedding}.weight", (spec.vocab_size, width))
    positions_PE = None
    if spec.learned_positions is not None:
        positions_PE = builder.take(f"{names.positions}.weight", (spec.learned_positions, hidden))
    projects = spec.embedding_size is not None
    weights = DecoderWeights(
        embedding_VE=embedding_VE,
        layers=tuple(layers.layer(index) for index in range(len(spec.layers))),
        final_norm=layers.norm(names.final_norm) if spec.block is not Block.POST else None,
        head=_load_head(spec, names, builder, embedding_VE),
        size_bytes=0,
        embedding_norm=layers.norm(names.embedding_norm) if spec.embedding_norm else None,
        positions_PE=positions_PE,
        project_in=builder.linear((names.project_in,), (hidden,), width, bias=False) if projects else None,
        project_out=builder.linear((names.project_out,), (width,), hidden, bias=False) if projects else None,
    )
    source.finish()
    return weights._replace(size_bytes=builder.size_bytes)


def _load_head(spec: ArchitectureSpec, names: WeightNames, builder: WeightBuilder, embedding_VE: Tensor) -> Linear:
    """The head, or the embedding table in its place."""
    name = names.head
    weight_VE = builder.head(f"{name}.weight", embedding_VE, tied=spec.tied_head)
    tied = weight_VE is embedding_VE
    if spec.unit_head_rows:
        weight_VE = unit_rows(weight_VE)
    weight = builder.kernels.pack_divided(weight_VE, Division((spec.vocab_size,)))
    if tied and weight is not embedding_VE:
        # A device that packs has the table a second time, in the form its linears want.
        builder.size_bytes += embedding_VE.nbytes
    return Linear(weight, builder.take(f"{name}.bias", (spec.vocab_size,)) if spec.head_bias else None)


class _Layers:
    """Builds the layers of a model."""

    def __init__(self, spec: ArchitectureSpec, names: WeightNames, builder: WeightBuilder) -> None:
        self._spec = spec
        self._names = names
        self._builder = builder

    def layer(self, index: int) -> LayerWeights:
        """Layer ``index``."""
        names, block = self._names, self._spec.block
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
            mixer=self._mixer(index),
            attention_out_norm=attention_out_norm,
            mlp_norm=mlp_norm,
            mlp=self._mlp(index),
            mlp_out_norm=mlp_out_norm,
        )

    def norm(self, name: str, index: int = 0) -> NormWeights:
        """One of the norms over the hidden size."""
        return self._builder.norm(name.format(index), self._spec.hidden_size, self._spec.norm)

    def _mixer(self, index: int) -> MixerWeights:
        spec = self._spec
        if spec.layers[index].has_delta_net and spec.delta_net is not None:
            return load_delta_net(self._builder, spec.delta_net, self._names.delta_net, spec.hidden_size, index)
        if spec.latent is not None:
            return load_latent(self._builder, spec, spec.latent, self._names, index)
        return load_attention(self._builder, spec, self._names, index)

    def _mlp(self, index: int) -> MLPWeights | ExpertMLPWeights:
        spec, names = self._spec, self._names
        if spec.layers[index].has_experts and spec.experts is not None:
            return self._experts(spec.experts, index)
        return self._dense(names.gate_up, names.down, spec.intermediate_size, index)

    def _dense(self, gate_up: tuple[str, ...], down: str, inner: int, index: int) -> MLPWeights:
        spec, transposed, linear = self._spec, self._names.transposed, self._builder.linear
        up = tuple(name.format(index) for name in gate_up)
        rows = (inner, inner) if spec.gated else (inner,)
        down_rows, summed = (spec.hidden_size,), Division(inputs=True)
        return MLPWeights(
            up=linear(up, rows, spec.hidden_size, bias=spec.mlp_bias, transposed=transposed, division=Division(rows)),
            down=linear(
                (down.format(index),), down_rows, inner, bias=spec.mlp_bias, transposed=transposed, division=summed
            ),
        )

    def _experts(self, experts: ExpertsSpec, index: int) -> ExpertMLPWeights:
        names, hidden, count = self._names.experts, self._spec.hidden_size, experts.num_experts
        builder = self._builder
        shared = shared_gate = bias_X = None
        if experts.shared_size is not None:
            shared = self._dense(names.shared_gate_up, names.shared_down, experts.shared_size, index)
            if experts.shared_gate:
                shared_gate = builder.linear((names.shared_gate.format(index),), (1,), hidden, bias=False)
        if experts.selection_bias:
            # It tells apart scores that lie closer together than its own roundings in a short type.
            bias_X = builder.take(names.selection_bias.format(index), (count,), torch.float32)
        return ExpertMLPWeights(
            router=builder.linear((names.router.format(index),), (count,), hidden, bias=experts.router_bias),
            selection_bias_X=bias_X,
            experts=take_experts(experts, names, hidden, layer=index, builder=builder),
            shared=shared,
            shared_gate=shared_gate,
        )
