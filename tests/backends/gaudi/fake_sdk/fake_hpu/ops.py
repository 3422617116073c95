"""``torch.ops.hpu``: the schemas of the SDK, computed on the host."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

SCHEMAS = (
    "rms_norm(Tensor data_in, Tensor gamma, float eps) -> (Tensor, Tensor)",
    "rotary_pos_embedding(Tensor input, Tensor sin, Tensor cos, Tensor? position_ids, int offset, int mode) -> Tensor",
    "sdpa_recomp_fwd(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float dropout_p, float scale, "
    "bool is_causal, bool requires_backward, str softmax_mode, Tensor? valid_seq_len, str seq_padding_type) -> Tensor",
    "cast_to_fp8_v2(Tensor input, Tensor? scale, bool stochastic_rounding, bool is_amax, ScalarType dtype) "
    "-> (Tensor, Tensor)",
    "cast_from_fp8(Tensor input, Tensor? scale, ScalarType out_dtype) -> Tensor",
    "fp8_gemm_v2(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor? D, ScalarType out_dtype, "
    "Tensor? A_scale_inv, Tensor? B_scale_inv, Tensor? bias, bool accumulate) -> Tensor",
)
"""Versioned data: SDK 1.24."""

GAUDI2_MOST, GAUDI3_MOST = 240.0, 448.0
"""The largest number in 8 bits."""


def register() -> torch.library.Library:
    """Define the operations; the library must be kept."""
    library = torch.library.Library("hpu", "DEF")
    for schema in SCHEMAS:
        name = schema.partition("(")[0]
        library.define(schema)
        library.impl(name, globals()[f"_{name}"], "CPU")
    with warnings.catch_warnings():
        # Torch's own for the host says once that it is new; the device's does not.
        warnings.simplefilter("ignore")
        torch.zeros(1).index_reduce_(0, torch.zeros(1, dtype=torch.int64), torch.zeros(1), "amax")
    return library


def _rms_norm(data_in: Tensor, gamma: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if data_in.dim() < 3:
        raise RuntimeError(f"rms_norm takes 3 dimensions or more, not {data_in.dim()}")
    if gamma.dtype != data_in.dtype:
        raise RuntimeError("the fast path of rms_norm wants gamma in the type of its input")
    inverse = torch.rsqrt(data_in.float().square().mean(-1, keepdim=True) + eps)
    return (data_in.float() * inverse * gamma.float()).to(data_in.dtype), inverse


def _rotary_pos_embedding(
    input: Tensor, sin: Tensor, cos: Tensor, position_ids: Tensor | None, offset: int, mode: int
) -> Tensor:
    if position_ids is not None or offset or mode:
        raise RuntimeError("only the blockwise mode without positions is known here")
    if not input.dtype == sin.dtype == cos.dtype or cos.shape[-1] != input.shape[-1]:
        raise RuntimeError("cos and sin must have the type and the last dimension of the input")
    first, second = input.float().chunk(2, dim=-1)
    rotated = torch.cat((-second, first), dim=-1)
    return (input.float() * cos.float() + rotated * sin.float()).to(input.dtype)


def _sdpa_recomp_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attention_mask: Tensor | None,
    dropout_p: float,
    scale: float,
    is_causal: bool,
    requires_backward: bool,
    softmax_mode: str,
    valid_seq_len: Tensor | None,
    seq_padding_type: str,
) -> Tensor:
    if dropout_p or requires_backward:
        raise RuntimeError("inference alone is known here")
    groups = q.shape[1] // k.shape[1]
    keys, values = (x.float().repeat_interleave(groups, dim=1) for x in (k, v))
    scores = q.float() @ keys.transpose(-1, -2) * scale
    if attention_mask is not None:
        scores = scores + attention_mask.float()
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    weights = scores.softmax(dim=-1)
    if softmax_mode == "fast":
        weights = weights.to(q.dtype).float()
    return (weights @ values).to(q.dtype)


def _cast_to_fp8_v2(
    input: Tensor, scale: Tensor | None, stochastic_rounding: bool, is_amax: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    if dtype is not torch.float8_e4m3fn:
        raise RuntimeError(f"{dtype} is no type of 8 bits that the device multiplies")
    scaled = input.float() if scale is None else input.float() * scale.float()
    return scaled.clamp(-GAUDI2_MOST, GAUDI2_MOST).to(dtype), input.float().abs().amax()


def _cast_from_fp8(input: Tensor, scale: Tensor | None, out_dtype: torch.dtype) -> Tensor:
    return (input.float() if scale is None else input.float() * scale.float()).to(out_dtype)


def _fp8_gemm_v2(
    A: Tensor,
    trans_A: bool,
    B: Tensor,
    trans_B: bool,
    D: Tensor | None,
    out_dtype: torch.dtype,
    A_scale_inv: Tensor | None,
    B_scale_inv: Tensor | None,
    bias: Tensor | None,
    accumulate: bool,
) -> Tensor:
    if {A.dtype, B.dtype} != {torch.float8_e4m3fn}:
        raise RuntimeError(f"fp8_gemm_v2 multiplies numbers of 8 bits, not {A.dtype} and {B.dtype}")
    if accumulate or D is not None:
        raise RuntimeError("accumulation is not known here")
    left, right = (A.t() if trans_A else A).float(), (B.t() if trans_B else B).float()
    rows = 1.0 if A_scale_inv is None else A_scale_inv.float().reshape(-1, 1)
    columns = 1.0 if B_scale_inv is None else B_scale_inv.float().reshape(1, -1)
    product = left @ right * rows * columns
    return (product if bias is None else product + bias.float()).to(out_dtype)
