"""What each operation of the contract is tried on. A new operation is one more entry of ``OPERATIONS``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tgi_core.testing.conformance.cases import attention, cache, elementwise, linear, sampling, states, tables
from tgi_core.testing.conformance.cases.case import Bench, Case, CaseGenerator, Scope

OPERATIONS: Mapping[str, CaseGenerator] = {
    "embedding": linear.embedding,
    "linear": linear.linear,
    "gated_linear": linear.gated_linear,
    "rms_norm": elementwise.rms_norm,
    "add_rms_norm": elementwise.add_rms_norm,
    "layer_norm": elementwise.layer_norm,
    "activation_mul": elementwise.activation_mul,
    "activation": elementwise.activation,
    "rope": elementwise.rope,
    "write_kv": cache.write_kv,
    "rope_write_kv": cache.rope_write_kv,
    "norm_rope_write_kv": cache.norm_rope_write_kv,
    "attention": attention.attention,
    "apply_bitmask": tables.apply_bitmask,
    "sample": sampling.sample,
    "copy_blocks": cache.copy_blocks,
    "advance_tables": tables.advance_tables,
    "decode_inputs": tables.decode_inputs,
    "route": linear.route,
    "experts": linear.experts,
    "causal_conv": states.causal_conv,
    "gated_delta_rule": states.gated_delta_rule,
    "selective_scan": states.selective_scan,
    "state_space_dual": states.state_space_dual,
}
"""By the method's name."""

PART_OF_OTHERS: Mapping[str, str] = {
    "pack_linear": "linear",
    "prepare_attention": "attention",
    "pack_experts": "experts",
}
"""Methods whose results only another operation takes, which tries them."""


def all_cases(scope: Scope) -> Iterator[Case]:
    """Every case of every operation."""
    for generate in OPERATIONS.values():
        yield from generate(scope)


__all__ = ["OPERATIONS", "PART_OF_OTHERS", "Bench", "Case", "CaseGenerator", "Scope", "all_cases"]
