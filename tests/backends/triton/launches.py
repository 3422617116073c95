"""Every launch of the kernels at the sizes of real models, on tensors without memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from msgspec.structs import replace
from torch import Tensor

from tests.backends.triton.support import attention_spec
from tgi_core.contract import AttentionBatch, AttentionSpec, HeadNorms, SampleInputs
from tgi_core.contract.experts import ExpertWeights, Routed, RoutingSpec, Scoring
from tgi_core.sampling.params import Tier
from tgi_core.sampling.rules import RuleSet
from tgi_core.shards.tables import make_state
from tgi_triton import TritonKernels

SPECS = {
    "128, four a key head": attention_spec(32, 8, 128),
    "128, two a key head": attention_spec(16, 8, 128),
    "128, eight a key head": attention_spec(64, 8, 128),
    "64, one a key head": attention_spec(32, 32, 64),
    "64, three a key head": attention_spec(9, 3, 64),
    "96": attention_spec(32, 32, 96),
    "128, window and soft cap": attention_spec(32, 16, 128, window=4096, soft_cap=50.0),
    "256, window": attention_spec(8, 4, 256, window=1024),
    "64, window and sinks": replace(attention_spec(64, 8, 64, window=128), sinks=True),
    "128, bias on distance": replace(attention_spec(32, 32, 128), alibi_slopes=(0.5,) * 32),
}
FEW_SPECS = ("128, four a key head", "256, window")
"""Enough for other types than bfloat16."""

HIDDEN, INNER, VOCAB = 4096, 14336, 128_256
MANY_ROWS = 256


def launches(kernels: TritonKernels, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], object]]]:
    """Name and work of every launch, for weights and activations of ``dtype``."""
    specs = list(SPECS) if dtype is torch.bfloat16 else FEW_SPECS
    for name in specs:
        yield f"decode, {name}", lambda name=name: attend(kernels, SPECS[name], dtype, [1] * 4)
        yield f"prefill, {name}", lambda name=name: attend(kernels, SPECS[name], dtype, [100, 7])
    spec = SPECS["128, four a key head"]
    yield "decode, blocks of 16", lambda: attend(kernels, spec, dtype, [1] * 4, block_size=16)
    yield "prefill, blocks of 16", lambda: attend(kernels, spec, dtype, [100, 7], block_size=16)
    for heads in (16, 128):
        spec = latent_spec(heads)
        if not kernels.supports("attention", spec):
            continue
        yield f"latent decode, {heads} heads", lambda spec=spec: attend(kernels, spec, dtype, [1] * 4)
        yield f"latent prefill, {heads} heads", lambda spec=spec: attend(kernels, spec, dtype, [100, 7])
    yield from _linears(kernels, dtype)
    yield from _experts(kernels, dtype)
    yield from _elementwise(kernels, dtype)
    for rows in (1, MANY_ROWS):
        logits_BV = make(rows, VOCAB, dtype=dtype)
        for tier in (Tier.GREEDY, Tier.SAMPLED):
            yield (
                f"sample {tier.name.lower()}, {rows} rows",
                lambda logits_BV=logits_BV, tier=tier: kernels.sample(logits_BV, sample_inputs(len(logits_BV), tier)),
            )
    masks_RW = make(MANY_ROWS, VOCAB // 32, dtype=torch.int32)
    rows_R = make(MANY_ROWS, dtype=torch.int64)
    yield "bitmask", lambda: kernels.apply_bitmask(make(MANY_ROWS, VOCAB, dtype=dtype), rows_R, masks_RW)
    yield "tables", lambda: decode_tables(kernels, dtype)


def _linears(kernels: TritonKernels, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], object]]]:
    weight_NK, gate_up_NK = make(6144, HIDDEN, dtype=dtype), make(2 * INNER, HIDDEN, dtype=dtype)
    down_NK, bias_N = make(HIDDEN, INNER, dtype=dtype), make(6144, dtype=dtype)
    for rows in (1, 2, 32, MANY_ROWS):
        x_TK, x_TF = make(rows, HIDDEN, dtype=dtype), make(rows, INNER, dtype=dtype)
        yield f"linear, {rows} rows", lambda x_TK=x_TK: kernels.linear(x_TK, kernels.pack_linear(weight_NK), None)
        yield (
            f"linear with a bias, {rows} rows",
            lambda x_TK=x_TK: kernels.linear(x_TK, kernels.pack_linear(weight_NK), bias_N),
        )
        yield f"down, {rows} rows", lambda x_TF=x_TF: kernels.linear(x_TF, kernels.pack_linear(down_NK), None)
        yield (
            f"gated linear, {rows} rows",
            lambda x_TK=x_TK: kernels.gated_linear(x_TK, kernels.pack_linear(gate_up_NK), None, "silu"),
        )


def _experts(kernels: TritonKernels, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], object]]]:
    count, hidden, inner, chosen = 32, 2880, 1440, 4
    # By how many rows there are, an expert's tiles are of other sizes.
    for activation, bias, rows in (
        ("silu", False, 1),
        ("silu", False, 16),
        ("silu", False, 128),
        ("silu", False, 512),
        ("silu", False, 4096),
        ("swiglu_clamped", True, 1),
        ("swiglu_clamped", True, 4096),
    ):
        gate_up, down = make(count, 2 * inner, hidden, dtype=dtype), make(count, hidden, inner, dtype=dtype)
        biases = (make(count, 2 * inner, dtype=dtype), make(count, hidden, dtype=dtype)) if bias else (None, None)
        weights = ExpertWeights(gate_up, biases[0], down, biases[1])
        routed = Routed(make(rows, chosen, dtype=torch.float32), make(rows, chosen, dtype=torch.int64))
        x_TE = make(rows, hidden, dtype=dtype)
        yield (
            f"experts, {activation}, {rows} rows",
            lambda x_TE=x_TE, weights=weights, routed=routed, activation=activation: kernels.experts(
                x_TE, weights, routed, activation
            ),
        )
    for scoring, bias in ((Scoring.SOFTMAX, False), (Scoring.SOFTMAX_CHOSEN, False), (Scoring.SIGMOID, True)):
        for rows in (1, 4096):
            spec = RoutingSpec(top_k=8, scoring=scoring, renormalize=bias)
            bias_X = make(128, dtype=torch.float32) if bias else None
            yield (
                f"route, {scoring.name.lower()}, {rows} rows",
                lambda rows=rows, spec=spec, bias_X=bias_X: kernels.route(make(rows, 128, dtype=dtype), spec, bias_X),
            )


def _elementwise(kernels: TritonKernels, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], object]]]:
    rows = 7
    for size in (1024, HIDDEN, 16_384):
        x_TE, weight_E = make(rows, size, dtype=dtype), make(size, dtype=dtype)
        yield f"rms_norm, {size}", lambda x=x_TE, weight=weight_E: kernels.rms_norm(x, weight, 1e-5, 0.0)
        yield f"rms_norm with offset, {size}", lambda x=x_TE, weight=weight_E: kernels.rms_norm(x, weight, 1e-5, 1.0)
        yield f"add_rms_norm, {size}", lambda x=x_TE, weight=weight_E: kernels.add_rms_norm(x, x, weight, 1e-5, 0.0)
        yield f"layer_norm, {size}", lambda x=x_TE, weight=weight_E: kernels.layer_norm(x, weight, None, 1e-5)
        yield (
            f"layer_norm with bias, {size}",
            lambda x=x_TE, weight=weight_E: kernels.layer_norm(x, weight, weight, 1e-5),
        )
    for activation in ("silu", "gelu", "gelu_tanh"):
        yield (
            f"activation_mul, {activation}",
            lambda activation=activation: kernels.activation_mul(make(rows, 2 * INNER, dtype=dtype), activation),
        )
    for head_dim, half in ((128, 64), (64, 32), (96, 24), (256, 128)):
        spec = attention_spec(32, 8, head_dim)
        yield f"rope, {head_dim}", lambda spec=spec, half=half: rope(kernels, spec, half, dtype, norms=False)
        yield f"norm and rope, {head_dim}", lambda spec=spec, half=half: rope(kernels, spec, half, dtype, norms=True)


def latent_spec(heads: int) -> AttentionSpec:
    """DeepSeek's attention."""
    return AttentionSpec(num_heads=heads, num_kv_heads=1, head_dim=576, scale=0.07, latent_values=512)


def attend(
    kernels: TritonKernels, spec: AttentionSpec, dtype: torch.dtype, q_lens: list[int], *, block_size: int = 64
) -> None:
    """Attention of rows of 300 tokens."""
    rows, tokens = len(q_lens), sum(q_lens)
    columns = -(-300 // block_size)
    batch = AttentionBatch(
        q_lens=q_lens,
        kv_lens=[300] * rows,
        num_decodes=q_lens.count(1),
        q_starts_B=make(rows + 1, dtype=torch.int64),
        kv_lens_B=make(rows, dtype=torch.int32),
        block_tables_BM=make(rows, columns, dtype=torch.int32),
        slot_mapping_T=make(tokens, dtype=torch.int64),
        block_size=block_size,
        window=spec.window,
    )
    cache_NP2KD = make(*spec.cache_shape(rows * columns, block_size), dtype=dtype)
    q_THD = make(tokens, spec.num_heads, spec.head_dim, dtype=dtype)
    sinks_H = make(spec.num_heads, dtype=dtype) if spec.sinks else None
    kernels.attention(q_THD, cache_NP2KD, kernels.prepare_attention(batch, spec), spec, sinks_H)


def rope(kernels: TritonKernels, spec: AttentionSpec, half: int, dtype: torch.dtype, *, norms: bool) -> None:
    """Rope and the KV write of a few tokens."""
    tokens = 7
    qkv_TX = make(tokens, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim, dtype=dtype)
    cos_sin_T2R = make(tokens, 2 * half, dtype=torch.float32)
    rotary = (cos_sin_T2R[:, :half], cos_sin_T2R[:, half:])
    cache_NP2KD = make(4, 64, 2, spec.num_kv_heads, spec.head_dim, dtype=dtype)
    mapping_T = make(tokens, dtype=torch.int64)
    if norms:
        weight_D = make(spec.head_dim, dtype=dtype)
        head_norms = HeadNorms(weight_D, weight_D, 1e-5, 0.0)
        kernels.norm_rope_write_kv(qkv_TX, spec, rotary, cache_NP2KD, mapping_T, norms=head_norms)
    else:
        kernels.rope_write_kv(qkv_TX, spec, rotary, cache_NP2KD, mapping_T)


def sample_inputs(rows: int, tier: Tier) -> SampleInputs:
    """Inputs without rules."""
    integers, floats = make(rows, dtype=torch.int32), make(rows, dtype=torch.float32)
    return SampleInputs(
        slots_B=make(rows, dtype=torch.int64),
        positions_B=integers,
        temperature_B=floats,
        top_p_B=floats,
        top_k_B=integers,
        do_sample_B=make(rows, dtype=torch.bool),
        seed_B=make(rows, dtype=torch.int64),
        choice_B=integers,
        tier=tier,
    )


def decode_tables(kernels: TritonKernels, dtype: torch.dtype) -> None:
    """Gathering a decode step and appending its tokens."""
    state = make_state(
        max_slots=64,
        max_total_tokens=4096,
        blocks_per_slot=64,
        num_groups=1,
        caches=[make(10, 64, 2, 8, 128, dtype=dtype)],
        states=[],
        rules=RuleSet([]),
        device=torch.device("meta"),
    )
    slots_B = make(64, dtype=torch.int64)
    kernels.decode_inputs(state, slots_B)
    kernels.advance_tables(state.tokens_SL, state.lengths_S, slots_B, make(64, dtype=torch.int64))


def make(*shape: int, dtype: torch.dtype) -> Tensor:
    """A tensor that has a shape and nothing in it."""
    return torch.empty(shape, dtype=dtype, device="meta")
