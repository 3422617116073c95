"""Fused attention and rotary embedding."""

import inspect
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


def _attend(
    q, k, v, attn_mask, dropout_p, is_causal, scale, softmax_mode, recompute_mode, valid_seq_len, seq_padding_type
):
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
    if seq_padding_type not in ("left", "right"):
        raise AssertionError(f"seq_padding_type {seq_padding_type!r}")
    mask = None if attn_mask is None else attn_mask.expand(q.shape[0], -1, q.shape[2], k.shape[2])
    return torch.ops.hpu.sdpa_recomp_fwd(
        q, k, v, mask, dropout_p, scale, is_causal, False, softmax_mode.lower(), valid_seq_len, seq_padding_type
    )


_NAMES = inspect.signature(_attend).parameters
_LATER = {"return_dropout_mask": False, "return_attn_probs": False, "window_size": (-1, -1), "sinks": None}
"""What came with later releases, and the only value of each that is played here."""


def _release_of(count):
    """The fused attention of a release in which it has so many parameters."""
    parameters = [*_NAMES, *_LATER][:count]

    class Release(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            if len(args) != count:
                raise TypeError(f"FusedSDPA takes {count} arguments, not {len(args)}")
            for name, value in zip(parameters[len(_NAMES) :], args[len(_NAMES) :], strict=True):
                assert value == _LATER[name], name
            return _attend(*args[: len(_NAMES)])

    # As the SDK spells it out.
    Release.forward.__signature__ = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("ctx", *parameters)]
    )
    return Release


FusedSDPA = _release_of(int(os.environ.get(SDPA_VARIABLE, "15")))
