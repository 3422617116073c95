"""The reference kernels: every operation of the contract on any torch device, in any floating-point type."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract.experts import ExpertWeights, PackedExperts, Routed, RoutingSpec
from tgi_core.contract.kernels import (
    AttentionBatch,
    AttentionSpec,
    DecodeInputs,
    HeadNorms,
    Kernels,
    PackedWeight,
    PreparedAttention,
    Sampled,
    SampleInputs,
)
from tgi_core.contract.state import DeviceState
from tgi_core.contract.states import (
    ConvWeights,
    DeltaGates,
    DeltaRuleSpec,
    DualInputs,
    DualSpec,
    DualWeights,
    ScanInputs,
    ScanWeights,
    StepRows,
)
from tgi_core.reference import (
    attention,
    delta_rule,
    experts,
    norms,
    sampling,
    selective_scan,
    state_space_dual,
    states,
)
from tgi_core.reference.rope import rope


class ReferenceKernels(Kernels):
    """Readable rather than fast. Derive from it and override what a device does better."""

    def embedding(self, ids_T: Tensor, weight_VE: Tensor) -> Tensor:
        return F.embedding(ids_T, weight_VE)

    def pack_linear(self, weight_NK: Tensor) -> PackedWeight:
        return weight_NK

    def linear(self, x_TK: Tensor, weight: PackedWeight, bias_N: Tensor | None) -> Tensor:
        return F.linear(x_TK, weight, bias_N)

    def gated_linear(self, x_TK: Tensor, weight: PackedWeight, bias_N: Tensor | None, activation: str) -> Tensor:
        return self.activation_mul(self.linear(x_TK, weight, bias_N), activation)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        return norms.rms_norm(x, weight, eps, offset)

    def add_rms_norm(
        self, x_TE: Tensor, residual_TE: Tensor, weight_E: Tensor, eps: float, offset: float
    ) -> tuple[Tensor, Tensor]:
        residual_TE = residual_TE + x_TE
        return self.rms_norm(residual_TE, weight_E, eps, offset), residual_TE

    def layer_norm(self, x_TE: Tensor, weight_E: Tensor, bias_E: Tensor | None, eps: float) -> Tensor:
        return norms.layer_norm(x_TE, weight_E, bias_E, eps)

    def activation_mul(self, x_T2F: Tensor, activation: str) -> Tensor:
        return norms.activation_mul(x_T2F, activation)

    def activation(self, x_TF: Tensor, activation: str) -> Tensor:
        return norms.activate(x_TF, activation)

    def rope(self, x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
        return rope(x_THD, cos_TR, sin_TR)

    def write_kv(self, kv_TKD: tuple[Tensor, ...], cache_NP2KD: Tensor, slot_mapping_T: Tensor) -> None:
        cache_NP2KD.flatten(0, 1).index_copy_(0, slot_mapping_T, torch.stack(kv_TKD, dim=1))

    def rope_write_kv(
        self,
        qkv_TX: Tensor,
        spec: AttentionSpec,
        rotary: tuple[Tensor, Tensor] | None,
        cache_NP2KD: Tensor,
        slot_mapping_T: Tensor,
    ) -> Tensor:
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        qkv_TXD = qkv_TX.view(len(qkv_TX), -1, spec.head_dim)
        q_THD, k_TKD, v_TKD = qkv_TXD[:, :heads], qkv_TXD[:, heads:-kv_heads], qkv_TXD[:, -kv_heads:]
        if rotary is not None:
            q_THD, k_TKD = self.rope(q_THD, *rotary), self.rope(k_TKD, *rotary)
        self.write_kv((k_TKD, v_TKD), cache_NP2KD, slot_mapping_T)
        return q_THD

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
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        heads_TXD = qkv_TX.view(len(qkv_TX), -1, spec.head_dim)
        q_THD, k_TKD, v_TKD = heads_TXD[:, :heads], heads_TXD[:, heads:-kv_heads], heads_TXD[:, -kv_heads:]
        q_THD = self.rms_norm(q_THD, norms.q_norm_D, norms.eps, norms.offset)
        k_TKD = self.rms_norm(k_TKD, norms.k_norm_D, norms.eps, norms.offset)
        normed_TX = torch.cat((q_THD, k_TKD, v_TKD), dim=1).flatten(1)
        return self.rope_write_kv(normed_TX, spec, rotary, cache_NP2KD, slot_mapping_T)

    def prepare_attention(self, batch: AttentionBatch, spec: AttentionSpec) -> PreparedAttention:  # noqa: ARG002
        return batch

    def attention(
        self,
        q_THD: Tensor,
        cache_NP2KD: Tensor,
        prepared: PreparedAttention,
        spec: AttentionSpec,
        sinks_H: Tensor | None = None,
        *,
        distance_bias_HX: Tensor | None = None,
    ) -> Tensor:
        terms = attention.ScoreTerms(sinks_H, distance_bias_HX)
        return attention.paged_attention(q_THD, cache_NP2KD, prepared, spec, terms)

    def pack_experts(self, weight_XNK: Tensor) -> PackedExperts:
        return [self.pack_linear(weight_NK) for weight_NK in weight_XNK]

    def route(self, logits_TX: Tensor, spec: RoutingSpec, bias_X: Tensor | None) -> Routed:
        return experts.route(logits_TX, spec, bias_X)

    def experts(self, x_TE: Tensor, weights: ExpertWeights, routed: Routed, activation: str) -> Tensor:
        chosen_Y = routed.experts_TR.flatten()
        order_Y = chosen_Y.argsort(stable=True)
        x_YE = x_TE.index_select(0, order_Y // routed.experts_TR.shape[1])
        output_YE = torch.empty_like(x_YE)
        end = 0
        for expert, count in enumerate(chosen_Y.bincount(minlength=len(weights.gate_up)).tolist()):
            start, end = end, end + count
            if count:
                up_bias = None if weights.gate_up_bias_XN is None else weights.gate_up_bias_XN[expert]
                down_bias = None if weights.down_bias_XE is None else weights.down_bias_XE[expert]
                x_BF = self.gated_linear(x_YE[start:end], weights.gate_up[expert], up_bias, activation)
                output_YE[start:end] = self.linear(x_BF, weights.down[expert], down_bias)
        # Back in the tokens' order, so that a token's sum does not depend on its neighbours.
        output_TRE = torch.empty_like(output_YE).index_copy_(0, order_Y, output_YE)
        output_TRE = output_TRE.view(*routed.experts_TR.shape, x_TE.shape[-1])
        return (output_TRE.float() * routed.weights_TR[..., None]).sum(dim=1).to(x_TE.dtype)

    @property
    def captures_states(self) -> bool:
        return True

    def causal_conv(
        self, x_TC: Tensor, weights: ConvWeights, state_SJC: Tensor, rows: StepRows, activation: str | None
    ) -> Tensor:
        output_TC = states.causal_conv(x_TC, weights, state_SJC, rows)
        return (output_TC if activation is None else self.activation(output_TC, activation)).to(x_TC.dtype)

    def gated_delta_rule(
        self, qkv_TC: Tensor, gates: DeltaGates, state_SHDU: Tensor, rows: StepRows, spec: DeltaRuleSpec
    ) -> Tensor:
        return delta_rule.gated_delta_rule(qkv_TC, gates, state_SHDU, rows, spec).to(qkv_TC.dtype)

    def selective_scan(self, inputs: ScanInputs, weights: ScanWeights, state_SCZ: Tensor, rows: StepRows) -> Tensor:
        return selective_scan.selective_scan(inputs, weights, state_SCZ, rows).to(inputs.x_TC.dtype)

    def state_space_dual(
        self, inputs: DualInputs, weights: DualWeights, state_SHDZ: Tensor, rows: StepRows, spec: DualSpec
    ) -> Tensor:
        return state_space_dual.state_space_dual(inputs, weights, state_SHDZ, rows, spec).to(inputs.xbc_TC.dtype)

    def apply_bitmask(self, logits_BV: Tensor, rows_R: Tensor, masks_RW: Tensor) -> Tensor:
        bits_32 = torch.arange(32, dtype=torch.int32, device=masks_RW.device)
        allowed_RV = ((masks_RW[..., None] >> bits_32) & 1).flatten(1)[:, : logits_BV.shape[-1]].bool()
        masked_RV = logits_BV.index_select(0, rows_R).masked_fill_(~allowed_RV, float("-inf"))
        return logits_BV.index_copy_(0, rows_R, masked_RV)

    def sample(self, logits_BV: Tensor, inputs: SampleInputs) -> Sampled:
        return sampling.sample(logits_BV, inputs)

    def copy_blocks(self, cache_NP2KD: Tensor, sources_R: Tensor, targets_R: Tensor) -> None:
        cache_NP2KD.index_copy_(0, targets_R, cache_NP2KD.index_select(0, sources_R))

    def advance_tables(self, tokens_SL: Tensor, lengths_S: Tensor, slots_B: Tensor, ids_B: Tensor) -> None:
        positions_B = lengths_S.index_select(0, slots_B)
        tokens_SL[slots_B, positions_B.long()] = ids_B.to(tokens_SL.dtype)
        lengths_S.index_copy_(0, slots_B, positions_B + 1)
        lengths_S[-1:] = 1

    def decode_inputs(self, state: DeviceState, slots_B: Tensor) -> DecodeInputs:
        kv_lens_B = state.lengths_S.index_select(0, slots_B)
        positions_B = kv_lens_B.long() - 1
        # A model that attends to nothing has neither tables nor caches.
        block_size = state.kv[0].shape[1] if state.kv else 1
        columns_B, offsets_B = positions_B // block_size, positions_B % block_size
        return DecodeInputs(
            ids_B=state.tokens_SL[slots_B, positions_B],
            positions_B=positions_B,
            kv_lens_B=kv_lens_B,
            block_tables=tuple(table_SM.index_select(0, slots_B) for table_SM in state.block_tables),
            slot_mappings=tuple(
                table_SM[slots_B, columns_B].long() * block_size + offsets_B for table_SM in state.block_tables
            ),
        )
