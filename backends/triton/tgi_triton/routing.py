"""Routing of tokens to experts in one launch: scores, the best of them, their weights."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.contract.experts import Routed, RoutingSpec, Scoring
from tgi_triton.device_code import gdc_launch_dependents, gdc_wait, launch_options, next_power_of_2

_SCORINGS = (Scoring.SOFTMAX, Scoring.SOFTMAX_CHOSEN, Scoring.SIGMOID, Scoring.SIGMOID_CHOSEN)
_MOST_EXPERTS = 1024


def routes(spec: RoutingSpec, num_experts: int) -> bool:
    """Whether ``route`` knows this way of choosing; groups and the sparse mixer it does not."""
    return spec.scoring in _SCORINGS and spec.num_groups == 1 and num_experts <= _MOST_EXPERTS


@triton.jit
def _rank_keys(scores, columns, inside):
    """int64 that order as float32 scores do, the first of equal ones highest, and all others below."""
    bits = scores.to(tl.int32, bitcast=True)
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    return tl.where(inside, (order << 32) | (0x7FFFFFFF - columns).to(tl.int64), -0x8000000000000000)


@triton.jit(do_not_specialize=["num_tokens"])
def _route_kernel(
    logits_ptr,
    bias_ptr,
    weights_ptr,
    experts_ptr,
    num_tokens,
    scale,
    NUM_EXPERTS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    BLOCK_CHOSEN: tl.constexpr,
    SCORING: tl.constexpr,
    BIAS: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    tokens = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    exists = tokens < num_tokens
    columns = tl.arange(0, BLOCK_EXPERTS)
    inside = columns < NUM_EXPERTS
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    logits_ptrs = logits_ptr + tokens[:, None] * NUM_EXPERTS
    mask = exists[:, None] & inside[None, :]
    logits = tl.load(logits_ptrs + columns[None, :], mask=mask, other=float("-inf")).to(tl.float32)
    logits = tl.where(exists[:, None], logits, 0.0)
    highest = tl.max(logits, axis=1)
    total = tl.sum(tl.exp(logits - highest[:, None]), axis=1)
    scores = logits
    if SCORING == "SOFTMAX":
        scores = tl.exp(logits - highest[:, None]) / total[:, None]
    elif SCORING == "SIGMOID":
        scores = tl.sigmoid(logits)
    if BIAS:
        scores += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)[None, :]

    keys = _rank_keys(scores, columns[None, :], inside[None, :])
    choices = tl.arange(0, BLOCK_CHOSEN)
    experts = tl.zeros([TOKENS, BLOCK_CHOSEN], tl.int32)
    for choice in tl.static_range(CHOSEN):
        best = tl.max(keys, axis=1)
        expert = 0x7FFFFFFF - (best & 0xFFFFFFFF).to(tl.int32)
        experts = tl.where(choices[None, :] == choice, expert[:, None], experts)
        keys = tl.where(columns[None, :] == expert[:, None], -0x8000000000000000, keys)

    chosen_mask = exists[:, None] & (choices < CHOSEN)[None, :]
    chosen = tl.load(logits_ptrs + experts, mask=chosen_mask, other=float("-inf")).to(tl.float32)
    chosen = tl.where(exists[:, None], chosen, 0.0)
    if SCORING == "SOFTMAX":
        weights = tl.exp(chosen - highest[:, None]) / total[:, None]
    elif SCORING == "SOFTMAX_CHOSEN":
        weights = tl.exp(chosen - highest[:, None])
        weights = weights / tl.sum(weights, axis=1)[:, None]
    else:
        weights = tl.sigmoid(chosen)
    if RENORMALIZE:
        # Scores of a sigmoid can all be 0.
        weights = weights / tl.maximum(tl.sum(weights, axis=1), 1e-20)[:, None]
    places = tokens[:, None] * CHOSEN + choices[None, :]
    tl.store(weights_ptr + places, weights * scale, mask=chosen_mask)
    tl.store(experts_ptr + places, experts.to(tl.int64), mask=chosen_mask)


def route(logits_TX: Tensor, spec: RoutingSpec, bias_X: Tensor | None, *, dependent: bool) -> Routed:
    """See ``ExpertKernels.route``, for what ``routes`` is true of; of equal scores the first expert is chosen."""
    tokens, num_experts = logits_TX.shape
    weights_TR = torch.empty((tokens, spec.top_k), dtype=torch.float32, device=logits_TX.device)
    experts_TR = torch.empty((tokens, spec.top_k), dtype=torch.int64, device=logits_TX.device)
    logits_TX = logits_TX.contiguous()
    # The choice is made before such scores are, without a bias.
    chosen_first = spec.scoring in (Scoring.SOFTMAX_CHOSEN, Scoring.SIGMOID_CHOSEN)
    block = next_power_of_2(num_experts)
    program_tokens = 1 if tokens <= 256 else max(1, 512 // block)
    if tokens:
        _route_kernel[(triton.cdiv(tokens, program_tokens),)](
            logits_TX,
            logits_TX if bias_X is None else bias_X,
            weights_TR,
            experts_TR,
            tokens,
            spec.scale,
            NUM_EXPERTS=num_experts,
            BLOCK_EXPERTS=block,
            CHOSEN=spec.top_k,
            BLOCK_CHOSEN=next_power_of_2(spec.top_k),
            SCORING=spec.scoring.name,
            BIAS=bias_X is not None and not chosen_first,
            RENORMALIZE=spec.renormalize and not chosen_first,
            TOKENS=program_tokens,
            DEPENDENT=dependent,
            num_warps=1 if program_tokens == 1 else 4,
            **launch_options(dependent),
        )
    return Routed(weights_TR, experts_TR)
