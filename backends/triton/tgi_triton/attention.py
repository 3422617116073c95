"""Attention of a mixed batch: decode rows and prefill rows, each by the kernel made for it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec
from tgi_triton.decode_attention import DecodeScratch, decode_attention, make_scratch
from tgi_triton.online_softmax import HeadTerms
from tgi_triton.prefill_attention import prefill_attention
from tgi_triton.tuning import Tuning

FEATURES = frozenset({"a soft cap", "a bias on distance", "sinks"})
"""What attention knows beyond a window, as ``AttentionSpec.features`` names it."""

LARGEST_HEAD_DIM = 256
_NO_TERMS = HeadTerms()


class PreparedBatch(NamedTuple):
    """A step's batch, the decodes' scratch and the number of prefill tokens."""

    batch: AttentionBatch
    scratch: DecodeScratch | None
    prefill_tokens: int


def prepare(batch: AttentionBatch, spec: AttentionSpec, tuning: Tuning, arrivals_X: Tensor) -> PreparedBatch:
    """What the layers of a group share."""
    scratch = make_scratch(batch.num_decodes, spec, tuning, arrivals_X) if batch.num_decodes else None
    return PreparedBatch(batch, scratch, sum(batch.q_lens) - batch.num_decodes)


def attend(
    q_THD: Tensor,
    cache_NP2KD: Tensor,
    prepared: PreparedBatch,
    spec: AttentionSpec,
    tuning: Tuning,
    *,
    terms: HeadTerms = _NO_TERMS,
) -> Tensor:
    """See ``Kernels.attention``."""
    batch, decodes = prepared.batch, prepared.batch.num_decodes
    output_THD = torch.empty_like(q_THD)
    attend_decodes(q_THD, cache_NP2KD, output_THD, prepared, spec, tuning, terms=terms)
    if prepared.prefill_tokens:
        prefill_attention(
            q_THD,
            cache_NP2KD,
            output_THD,
            batch.block_tables_BM[decodes:],
            batch.kv_lens_B[decodes:],
            batch.q_starts_B[decodes:],
            prepared.prefill_tokens,
            spec,
            tuning,
            terms,
        )
    return output_THD


def attend_decodes(
    q_THD: Tensor,
    cache_NP2KD: Tensor,
    output_THD: Tensor,
    prepared: PreparedBatch,
    spec: AttentionSpec,
    tuning: Tuning,
    *,
    terms: HeadTerms = _NO_TERMS,
) -> None:
    """The decode rows alone, into the front of ``output``; nothing where there are none."""
    batch, scratch = prepared.batch, prepared.scratch
    if scratch is not None:
        decode_attention(
            q_THD[: batch.num_decodes],
            cache_NP2KD,
            output_THD,
            batch.block_tables_BM,
            batch.kv_lens_B,
            scratch,
            spec,
            tuning,
            terms,
        )
