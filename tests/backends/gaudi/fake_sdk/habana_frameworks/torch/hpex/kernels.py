"""Fused attention and rotary embedding."""

import os
from enum import Enum

import torch

SDPA_VARIABLE = "TGI_FAKE_HPU_SDPA_PARAMETERS"
"""How many parameters the fused attention has: 11, 13 or 15, as in releases of the SDK."""


class RotaryPosEmbeddingMode(Enum):
    BLOCKWISE = 0
    PAIRWISE = 1


def apply_rotary_pos_emb(p, *args):
    """``p, cos, sin, position_ids, offset, mode``."""
    cos, sin, position_ids, offset, mode = args
    if torch.float32 in (p.dtype, cos.dtype, sin.dtype):
        p, cos, sin = p.float(), cos.float(), sin.float()
    cos, sin = cos.to(p.dtype), sin.to(p.dtype)
    return torch.ops.hpu.rotary_pos_embedding(p, sin, cos, position_ids, offset, mode.value)


def _attend(q, k, v, attn_mask, dropout_p, is_causal, scale, softmax_mode, recompute_mode, valid_seq_len, padding):
    if q.dim() != 4 or q.shape[1] % k.shape[1]:
        raise AssertionError("queries are [B, H, S, D], and their heads a multiple of the keys'")
    if softmax_mode not in ("None", "fast", "fp32"):
        raise AssertionError(f"softmax_mode {softmax_mode!r}")
    if softmax_mode == "fp32" and q.dtype is not torch.bfloat16:
        raise AssertionError("softmax_mode = fp32 is supported only when q/k/v inputs are BF16")
    if valid_seq_len is not None and not is_causal:
        raise AssertionError("Valid sequence length is supported only with is_causal")
    if is_causal and attn_mask is not None:
        raise AssertionError("a mask and is_causal exclude each other")
    if padding not in ("left", "right"):
        raise AssertionError(f"padding {padding!r}")
    mask = None if attn_mask is None else attn_mask.expand(q.shape[0], -1, q.shape[2], k.shape[2])
    return torch.ops.hpu.sdpa_recomp_fwd(
        q, k, v, mask, dropout_p, scale, is_causal, False, softmax_mode.lower(), valid_seq_len, padding
    )


class _Sdpa11(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        q,
        k,
        v,
        attn_mask,
        dropout_p,
        is_causal,
        scale,
        softmax_mode,
        recompute_mode,
        valid_seq_len,
        seq_padding_type,
    ):
        return _attend(
            q,
            k,
            v,
            attn_mask,
            dropout_p,
            is_causal,
            scale,
            softmax_mode,
            recompute_mode,
            valid_seq_len,
            seq_padding_type,
        )


class _Sdpa13(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        q,
        k,
        v,
        attn_mask,
        dropout_p,
        is_causal,
        scale,
        softmax_mode,
        recompute_mode,
        valid_seq_len,
        seq_padding_type,
        return_dropout_mask,
        return_attn_probs,
    ):
        assert return_dropout_mask is False
        assert return_attn_probs is False
        return _attend(
            q,
            k,
            v,
            attn_mask,
            dropout_p,
            is_causal,
            scale,
            softmax_mode,
            recompute_mode,
            valid_seq_len,
            seq_padding_type,
        )


class _Sdpa15(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        q,
        k,
        v,
        attn_mask,
        dropout_p,
        is_causal,
        scale,
        softmax_mode,
        recompute_mode,
        valid_seq_len,
        seq_padding_type,
        return_dropout_mask,
        return_attn_probs,
        window_size,
        sinks,
    ):
        assert return_dropout_mask is False
        assert return_attn_probs is False
        assert tuple(window_size) == (-1, -1)
        assert sinks is None
        return _attend(
            q,
            k,
            v,
            attn_mask,
            dropout_p,
            is_causal,
            scale,
            softmax_mode,
            recompute_mode,
            valid_seq_len,
            seq_padding_type,
        )


FusedSDPA = {"11": _Sdpa11, "13": _Sdpa13, "15": _Sdpa15}[os.environ.get(SDPA_VARIABLE, "15")]
