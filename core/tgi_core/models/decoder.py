"""The decoder-only transformer: reads a spec, computes through the kernels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_core.contract.experts import Routed
from tgi_core.contract.kernels import AttentionSpec, Kernels
from tgi_core.models.decoder_weights import DecoderWeights, ExpertMLPWeights, MLPWeights
from tgi_core.models.linear import Linear, NormWeights
from tgi_core.models.mixers import Mixer
from tgi_core.models.mixers.attention import Attention
from tgi_core.models.mixers.delta_net import DeltaNet, DeltaNetWeights, delta_net_states
from tgi_core.models.mixers.latent import LatentAttention, LatentWeights
from tgi_core.models.mixers.place import AttentionPlace
from tgi_core.models.model import SlotState
from tgi_core.models.spec import ArchitectureSpec, Block, Norm
from tgi_core.models.step import Step


class Decoder:
    """One model on one device. Holds no state of requests: caches and tables come with each call.

    Args:
        spec: the model.
        weights: loaded and packed by the same ``kernels``.
        kernels: every operation but attention.
        attention_kernels: for each window of ``spec.windows`` the kernels that attend.

    Attributes:
        hidden_E: a row as ``hidden`` returns it, for its size and type.
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
        self._mixers = _make_mixers(spec, weights, kernels, attention_kernels)
        self.hidden_E = weights.embedding_VE.new_zeros(spec.hidden_size)
        # Rounded to the weights' type first, as the models were trained.
        self._embedding_scale = float(torch.tensor(spec.embedding_scale, dtype=weights.embedding_VE.dtype))
        if spec.block is Block.POST:
            self._next_norms = [layer.mlp_out_norm for layer in weights.layers]
        else:
            self._next_norms = [*(layer.attention_norm for layer in weights.layers[1:]), weights.final_norm]

    def hidden(self, step: Step) -> Tensor:
        """Run all layers: the step's tokens -> normed hidden states [T, E]; writes caches and states."""
        spec = self.spec
        residual_TE = self._embed(step.ids_T, step.positions_T)
        x_TE = self._norm(residual_TE, self._weights.layers[0].attention_norm)
        for index, (layer, mixer) in enumerate(zip(self._weights.layers, self._mixers, strict=True)):
            attended_TE = mixer(x_TE, step)
            if layer.attention_out_norm is not None:
                attended_TE = self._norm(attended_TE, layer.attention_out_norm)
            if spec.block.is_parallel:
                if layer.mlp_norm is not None:
                    x_TE = self._norm(residual_TE, layer.mlp_norm)
                output_TE = attended_TE + self._mlp(x_TE, layer.mlp)
            else:
                x_TE, residual_TE = self._add(attended_TE, residual_TE, layer.mlp_norm)
                output_TE = self._mlp(x_TE, layer.mlp)
                if layer.mlp_out_norm is not None and spec.block is not Block.POST:
                    output_TE = self._norm(output_TE, layer.mlp_out_norm)
            x_TE, residual_TE = self._add(output_TE, residual_TE, self._next_norms[index])
        return x_TE

    def logits(self, hidden_BE: Tensor) -> Tensor:
        """The head: hidden states of the rows that sample -> [B, V]."""
        if self._weights.project_out is not None:
            hidden_BE = self._linear(hidden_BE, self._weights.project_out)
        logits_BV = self._linear(hidden_BE, self._weights.head)
        if self.spec.logit_scale != 1.0:
            logits_BV = logits_BV * self.spec.logit_scale
        cap = self.spec.final_soft_cap
        if cap is not None:
            logits_BV = torch.tanh(logits_BV.float() / cap) * cap
        return logits_BV

    def _embed(self, ids_T: Tensor, positions_T: Tensor) -> Tensor:
        spec, weights, kernels = self.spec, self._weights, self._kernels
        x_TE = kernels.embedding(ids_T, weights.embedding_VE)
        if spec.embedding_scale != 1.0:
            x_TE = x_TE * self._embedding_scale
        if weights.project_in is not None:
            x_TE = self._linear(x_TE, weights.project_in)
        if weights.positions_PE is not None:
            x_TE = x_TE + kernels.embedding(positions_T + spec.position_offset, weights.positions_PE)
        return self._norm(x_TE, weights.embedding_norm)

    def _mlp(self, x_TE: Tensor, mlp: MLPWeights | ExpertMLPWeights) -> Tensor:
        kernels, activation = self._kernels, self.spec.activation
        if isinstance(mlp, ExpertMLPWeights):
            return self._experts(x_TE, mlp)
        if self.spec.gated:
            x_TF = kernels.gated_linear(x_TE, mlp.up.weight, mlp.up.bias, activation)
        else:
            x_TF = kernels.activation(self._linear(x_TE, mlp.up), activation)
        return self._linear(x_TF, mlp.down)

    def _experts(self, x_TE: Tensor, mlp: ExpertMLPWeights) -> Tensor:
        kernels, experts = self._kernels, self.spec.experts
        assert experts is not None, "the spec says which layers have experts"
        routed = kernels.route(self._linear(x_TE, mlp.router), experts.routing, mlp.selection_bias_X)
        inputs_TE = x_TE
        if experts.weighs_inputs:
            inputs_TE = x_TE * routed.weights_TR.to(x_TE.dtype)
            routed = Routed(torch.ones_like(routed.weights_TR), routed.experts_TR)
        output_TE = kernels.experts(inputs_TE, mlp.experts, routed, self.spec.activation)
        if mlp.shared is None:
            return output_TE
        shared_TE = self._mlp(x_TE, mlp.shared)
        if mlp.shared_gate is not None:
            shared_TE = torch.sigmoid(self._linear(x_TE, mlp.shared_gate)) * shared_TE
        return output_TE + shared_TE

    def _linear(self, x_TK: Tensor, linear: Linear) -> Tensor:
        return self._kernels.linear(x_TK, linear.weight, linear.bias)

    def _norm(self, x_TE: Tensor, norm: NormWeights | None) -> Tensor:
        """``x`` normed; itself where there is no norm."""
        if norm is None:
            return x_TE
        spec = self.spec
        if spec.norm is Norm.RMS:
            return self._kernels.rms_norm(x_TE, norm.weight, spec.norm_eps, spec.norm_offset)
        return self._kernels.layer_norm(x_TE, norm.weight, norm.bias, spec.norm_eps)

    def _add(self, x_TE: Tensor, residual_TE: Tensor, norm: NormWeights | None) -> tuple[Tensor, Tensor]:
        """The residual stream with ``x`` added to it: what the next part of a layer reads, and the new stream."""
        spec = self.spec
        if spec.residual_scale != 1.0:
            x_TE = x_TE * spec.residual_scale
        if norm is not None and spec.norm is Norm.RMS and spec.block is not Block.POST:
            return self._kernels.add_rms_norm(x_TE, residual_TE, norm.weight, spec.norm_eps, spec.norm_offset)
        residual_TE = residual_TE + x_TE
        normed_TE = self._norm(residual_TE, norm)
        return normed_TE, normed_TE if spec.block is Block.POST else residual_TE


def _make_mixers(
    spec: ArchitectureSpec, weights: DecoderWeights, kernels: Kernels, attention_kernels: Sequence[Kernels]
) -> tuple[Mixer, ...]:
    specs = attention_specs(spec)
    mixers: list[Mixer] = []
    caches = itertools.count()
    states = 0
    for layer, layer_weights in zip(spec.layers, weights.layers, strict=True):
        mixer = layer_weights.mixer
        if isinstance(mixer, DeltaNetWeights):
            assert spec.delta_net is not None, "the spec says which weights there are"
            mixers.append(
                DeltaNet(
                    spec.delta_net,
                    mixer,
                    kernels,
                    activation=spec.activation,
                    norm_eps=spec.norm_eps,
                    first_state=states,
                )
            )
            states += len(delta_net_states(spec.delta_net))
            continue
        group = spec.windows.index(layer.window)
        place = AttentionPlace(attention_kernels[group], specs[group], group, next(caches), layer.rope)
        if isinstance(mixer, LatentWeights):
            assert spec.latent is not None, "the spec says which weights there are"
            mixers.append(LatentAttention(spec.latent, mixer, kernels, place))
        else:
            mixers.append(Attention(spec, mixer, kernels, place))
    return tuple(mixers)


def slot_states(spec: ArchitectureSpec) -> tuple[SlotState, ...]:
    """What the layers keep of a slot, one layer after the other."""
    if spec.delta_net is None:
        return ()
    return delta_net_states(spec.delta_net) * sum(layer.has_delta_net for layer in spec.layers)


def attention_specs(spec: ArchitectureSpec) -> tuple[AttentionSpec, ...]:
    """The attention of each window of ``spec.windows``."""
    return tuple(
        AttentionSpec(
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            scale=spec.attention_scale,
            window=window,
            chunk=window if spec.chunked else None,
            latent_values=None if spec.latent is None else spec.latent.rank,
            soft_cap=spec.attention_soft_cap,
            alibi_slopes=spec.alibi_slopes,
            sinks=spec.attention_sinks,
        )
        for window in spec.windows
    )
