"""The contract's operations in Triton; what is missing here is the reference."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec, DecodeInputs, DeviceState, Sampled, SampleInputs
from tgi_core.contract.experts import ExpertWeights, PackedExperts, Routed, RoutingSpec
from tgi_core.contract.kernels import HeadNorms, PackedWeight, PreparedAttention
from tgi_core.reference import ReferenceKernels
from tgi_core.reference import sampling as reference
from tgi_core.sampling.params import Tier
from tgi_triton import (
    activations,
    attention,
    bitmask,
    experts,
    gemv,
    latent_attention,
    norms,
    rope,
    routing,
    sampled,
    sampling,
    tables,
)
from tgi_triton.online_softmax import HeadTerms, slope_factor
from tgi_triton.tuning import Tuning

_ARRIVALS = 1 << 14
"""Rows times key heads that may be split; with more of them nothing is."""


class TritonKernels(ReferenceKernels):
    """Kernels on a torch device that Triton compiles for. Linears of many rows are torch's.

    Args:
        device: where the tensors are.
        tuning: tile sizes for the device's architecture.
    """

    def __init__(self, device: torch.device, tuning: Tuning) -> None:
        self._tuning = tuning
        self._slopes: dict[AttentionSpec, Tensor] = {}
        # Zero between launches: the last program to arrive clears what it counted.
        self._arrivals_X = torch.zeros(_ARRIVALS, dtype=torch.int32, device=device)

    def supports(self, operation: str, spec: AttentionSpec) -> bool:
        if operation != "attention":
            return True
        if spec.latent_values is not None:
            return latent_attention.fits(spec, self._tuning)
        return spec.features <= attention.FEATURES and spec.head_dim <= attention.LARGEST_HEAD_DIM

    def captures(self, tier: Tier) -> bool:
        return tier is not Tier.FULL

    def linear(self, x_TK: Tensor, weight: PackedWeight, bias_N: Tensor | None) -> Tensor:
        if self._tuning.gemv and len(x_TK) == 1:
            return gemv.gemv(x_TK, weight, bias_N, None, self._tuning)
        return self._library_linear(x_TK, weight, bias_N)

    def gated_linear(self, x_TK: Tensor, weight: PackedWeight, bias_N: Tensor | None, activation: str) -> Tensor:
        if self._tuning.gemv and len(x_TK) == 1 and activation in activations.ACTIVATIONS:
            return gemv.gemv(x_TK, weight, bias_N, activation, self._tuning)
        return self.activation_mul(self._library_linear(x_TK, weight, bias_N), activation)

    def _library_linear(self, x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
        """A linear by the vendor's library; backends choose among several."""
        return F.linear(x_TK, weight_NK, bias_N)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        return norms.rms_norm(x, weight, eps, offset, dependent=self._tuning.dependent_launch)

    def add_rms_norm(
        self, x_TE: Tensor, residual_TE: Tensor, weight_E: Tensor, eps: float, offset: float
    ) -> tuple[Tensor, Tensor]:
        return norms.add_rms_norm(x_TE, residual_TE, weight_E, eps, offset, dependent=self._tuning.dependent_launch)

    def layer_norm(self, x_TE: Tensor, weight_E: Tensor, bias_E: Tensor | None, eps: float) -> Tensor:
        return norms.layer_norm(x_TE, weight_E, bias_E, eps, dependent=self._tuning.dependent_launch)

    def activation_mul(self, x_T2F: Tensor, activation: str) -> Tensor:
        if activation == "swiglu_clamped":
            return super().activation_mul(x_T2F, activation)
        return activations.activation_mul(x_T2F, activation, dependent=self._tuning.dependent_launch)

    def rope_write_kv(
        self,
        qkv_TX: Tensor,
        spec: AttentionSpec,
        rotary: tuple[Tensor, Tensor] | None,
        cache_NP2KD: Tensor,
        slot_mapping_T: Tensor,
    ) -> Tensor:
        if rotary is None:
            # Attention wants queries without gaps; the reference returns a part of the projection.
            return super().rope_write_kv(qkv_TX, spec, rotary, cache_NP2KD, slot_mapping_T).contiguous()
        dependent = self._tuning.dependent_launch
        return rope.rope_write_kv(qkv_TX, None, spec, rotary, cache_NP2KD, slot_mapping_T, dependent=dependent)

    def norm_rope_write_kv(
        self,
        qkv_TX: Tensor,
        spec: AttentionSpec,
        rotary: tuple[Tensor, Tensor] | None,
        cache_NP2KD: Tensor,
        slot_mapping_T: Tensor,
        *,
        norms: HeadNorms,
    ) -> Tensor:
        if rotary is None:
            return super().norm_rope_write_kv(qkv_TX, spec, rotary, cache_NP2KD, slot_mapping_T, norms=norms)
        dependent = self._tuning.dependent_launch
        return rope.rope_write_kv(qkv_TX, norms, spec, rotary, cache_NP2KD, slot_mapping_T, dependent=dependent)

    def prepare_attention(self, batch: AttentionBatch, spec: AttentionSpec) -> PreparedAttention:
        if spec.alibi_slopes is not None and spec not in self._slopes:
            # Once, before any step is recorded: a recorded one copies nothing from the host.
            slopes_H = torch.tensor(spec.alibi_slopes, dtype=torch.float32) * slope_factor(spec)
            self._slopes[spec] = slopes_H.to(batch.kv_lens_B.device)
        if spec.latent_values is not None:
            return latent_attention.prepare(batch, spec, self._tuning, self._arrivals_X)
        return attention.prepare(batch, spec, self._tuning, self._arrivals_X)

    def attention(
        self,
        q_THD: Tensor,
        cache_NP2KD: Tensor,
        prepared: PreparedAttention,
        spec: AttentionSpec,
        sinks_H: Tensor | None = None,
        *,
        distance_bias_HX: Tensor | None = None,  # noqa: ARG002 - not supported
    ) -> Tensor:
        if spec.latent_values is not None:
            return latent_attention.attend(q_THD, cache_NP2KD, prepared, spec, self._tuning)
        terms = HeadTerms(self._slopes.get(spec), sinks_H)
        return attention.attend(q_THD, cache_NP2KD, prepared, spec, self._tuning, terms=terms)

    @property
    def captures_experts(self) -> bool:
        return True

    def pack_experts(self, weight_XNK: Tensor) -> PackedExperts:
        return weight_XNK.contiguous()

    def route(self, logits_TX: Tensor, spec: RoutingSpec, bias_X: Tensor | None) -> Routed:
        if not routing.routes(spec, logits_TX.shape[1]):
            return super().route(logits_TX, spec, bias_X)
        return routing.route(logits_TX, spec, bias_X, dependent=self._tuning.dependent_launch)

    def experts(self, x_TE: Tensor, weights: ExpertWeights, routed: Routed, activation: str) -> Tensor:
        return experts.experts(x_TE, weights, routed, activation, self._tuning)

    def apply_bitmask(self, logits_BV: Tensor, rows_R: Tensor, masks_RW: Tensor) -> Tensor:
        return bitmask.apply_bitmask(logits_BV, rows_R, masks_RW)

    def sample(self, logits_BV: Tensor, inputs: SampleInputs) -> Sampled:
        if inputs.tier is Tier.GREEDY:
            return Sampled(*sampling.choose_greedy(logits_BV, self._tuning, self._arrivals_X))
        if inputs.tier is Tier.SAMPLED:
            return Sampled(*sampled.sample(logits_BV, inputs, self._tuning))
        scores_BV = reference.apply_rules(logits_BV.float(), inputs)
        return reference.sample_whole_rows(scores_BV, inputs, *sampled.sample(scores_BV, inputs, self._tuning))

    def decode_inputs(self, state: DeviceState, slots_B: Tensor) -> DecodeInputs:
        if not state.block_tables:
            return super().decode_inputs(state, slots_B)
        return tables.decode_inputs(state, slots_B)

    def advance_tables(self, tokens_SL: Tensor, lengths_S: Tensor, slots_B: Tensor, ids_B: Tensor) -> None:
        tables.advance_tables(tokens_SL, lengths_S, slots_B, ids_B, dependent=self._tuning.dependent_launch)
