"""Sampling in plain torch: rules, then warpers, then the choice, as ``Kernels.sample`` orders them.

Scores are float32. Backends with a faster way for most rows use ``sample_whole_rows`` for the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.contract.kernels import Sampled, SampleInputs
from tgi_core.reference.noise import gumbel_noise
from tgi_core.sampling.params import Tier

NEGATIVE_INFINITY = float("-inf")

WHOLE_ROWS = 32
"""Rows whose whole distributions are looked at together: sorting a vocabulary takes many times its own memory."""


def sample(logits_BV: Tensor, inputs: SampleInputs) -> Sampled:
    """Apply the rules and choose; see ``Kernels.sample``."""
    if inputs.tier is Tier.GREEDY:
        return Sampled(*choose_greedy(logits_BV))
    scores_BV = apply_rules(logits_BV.float(), inputs)
    if inputs.whole_rows_R is None:
        return Sampled(*choose(warp(scores_BV, inputs), inputs))
    # Every row as if its whole distribution were needed: here that is the only way.
    sampled = sample_whole(scores_BV, inputs)
    if sampled.top_ids_RN is None or sampled.top_logprobs_RN is None:
        return sampled
    return sampled._replace(
        top_ids_RN=sampled.top_ids_RN.index_select(0, inputs.whole_rows_R),
        top_logprobs_RN=sampled.top_logprobs_RN.index_select(0, inputs.whole_rows_R),
    )


def sample_whole_rows(scores_BV: Tensor, inputs: SampleInputs, ids_B: Tensor, logprobs_B: Tensor) -> Sampled:
    """Sample ``inputs.whole_rows_R`` over again; the other rows keep what is in ``ids`` and ``logprobs``.

    Args:
        scores_BV: after the rules.
        inputs: of the full tier.
        ids_B, logprobs_B: what was chosen without a look at the rows' whole distributions; overwritten.
    """
    if inputs.whole_rows_R is None:
        return Sampled(ids_B, logprobs_B)
    pieces = []
    for rows_R in torch.split(inputs.whole_rows_R, WHOLE_ROWS):
        piece = sample_whole(scores_BV.index_select(0, rows_R), inputs.take(rows_R))
        ids_B.index_copy_(0, rows_R, piece.ids_B)
        logprobs_B.index_copy_(0, rows_R, piece.logprobs_B)
        pieces.append(piece)
    top_ids = [piece.top_ids_RN for piece in pieces if piece.top_ids_RN is not None]
    top_logprobs = [piece.top_logprobs_RN for piece in pieces if piece.top_logprobs_RN is not None]
    if not top_ids:
        return Sampled(ids_B, logprobs_B)
    return Sampled(ids_B, logprobs_B, torch.cat(top_ids), torch.cat(top_logprobs))


def sample_whole(scores_BV: Tensor, inputs: SampleInputs) -> Sampled:
    """Warp, choose, and report from the whole distributions of all rows; ``scores`` are those after the rules."""
    scores_BV = warp(scores_BV, inputs)
    ids_B, logprobs_B = choose(scores_BV, inputs)
    if not inputs.top_n and inputs.raw_logits_BV is None:
        return Sampled(ids_B, logprobs_B)
    logprobs_BV = scores_BV.log_softmax(dim=-1)
    if inputs.raw_logits_BV is not None and inputs.raw_logprobs_B is not None:
        raw_BV = inputs.raw_logits_BV.log_softmax(dim=-1, dtype=torch.float32)
        logprobs_BV = torch.where(inputs.raw_logprobs_B[:, None], raw_BV, logprobs_BV)
    logprobs_B = logprobs_BV.gather(1, ids_B[:, None]).squeeze(1)
    if not inputs.top_n:
        return Sampled(ids_B, logprobs_B)
    return Sampled(ids_B, logprobs_B, *top_tokens(logprobs_BV, min(2 * inputs.top_n, logprobs_BV.shape[-1])))


# -- rules ------------------------------------------------------------------------------------------------------------


def apply_rules(scores_BV: Tensor, inputs: SampleInputs) -> Tensor:
    """What the step's rules make of the scores."""
    for rule in inputs.rules:
        assert inputs.rule_rows is not None, "the full tier brings what its rules read"
        scores_BV = rule.apply(scores_BV, inputs.rule_rows)
    return scores_BV


# -- warpers ----------------------------------------------------------------------------------------------------------


def warp(scores_BV: Tensor, inputs: SampleInputs) -> Tensor:
    """Temperature, top-k, top-p and the step's other cuts, on the rows that sample."""
    warped_BV = scale(scores_BV, inputs.temperature_B)
    if inputs.cuts_top:
        warped_BV = keep_top(warped_BV, inputs.top_k_B, inputs.top_p_B)
    for cut in inputs.cuts:
        assert inputs.rule_rows is not None, "the full tier brings what its rules read"
        warped_BV = cut.apply(warped_BV, inputs.rule_rows)
    return torch.where(inputs.do_sample_B[:, None], warped_BV, scores_BV)


def scale(scores_BV: Tensor, temperature_B: Tensor) -> Tensor:
    """Divide by the temperature. The row's maximum goes first, so that no temperature can overflow to NaN."""
    return (scores_BV - scores_BV.amax(dim=-1, keepdim=True)) / temperature_B[:, None]


def keep_top(scores_BV: Tensor, top_k_B: Tensor, top_p_B: Tensor) -> Tensor:
    """Set to -inf what top-k and top-p cut off. Of equal scores the smaller token id ranks higher.

    Top-k keeps the k best (0 keeps all). Top-p then keeps the smallest set of best tokens whose probability reaches p,
    at least one (1 keeps all). Source: Holtzman et al. 2020. The largest score is 0, as ``scale`` makes it.
    """
    sorted_BV, order_BV = scores_BV.sort(dim=-1, descending=True, stable=True)
    kept_BV = kept_ranks(sorted_BV, top_k_B, top_p_B)
    return scores_BV.masked_fill(~torch.empty_like(kept_BV).scatter_(1, order_BV, kept_BV), NEGATIVE_INFINITY)


def kept_ranks(sorted_BR: Tensor, top_k_B: Tensor, top_p_B: Tensor, all_weights_B1: Tensor | None = None) -> Tensor:
    """Which ranks of descending scores stay, bool [B, R]; the first score is 0.

    ``all_weights`` is the sum of the exponentials of all scores, where ``sorted`` holds only the best.
    """
    ranks_R = torch.arange(sorted_BR.shape[-1], device=sorted_BR.device)
    kept_BR = (ranks_R < top_k_B[:, None]) | (top_k_B[:, None] <= 0)
    # Not softmax, whose sum in float32 is off by more than the last token's share in a large vocabulary: then backends
    # would differ in what they keep.
    weights_BR = torch.where(kept_BR, sorted_BR.exp(), 0.0)
    sums_BR = weights_BR.cumsum(dim=-1)
    total_B1 = sums_BR[:, -1:]
    if all_weights_B1 is not None:
        total_B1 = torch.where(top_k_B[:, None] > 0, total_B1, all_weights_B1)
    is_needed_BR = sums_BR - weights_BR < top_p_B[:, None] * total_B1
    return kept_BR & (is_needed_BR | (top_p_B[:, None] >= 1) | (ranks_R == 0))


# -- choice -----------------------------------------------------------------------------------------------------------


def choose(scores_BV: Tensor, inputs: SampleInputs) -> tuple[Tensor, Tensor]:
    """The largest of scores plus noise, or of scores where a row does not sample, and its log-probability."""
    token_ids_V = torch.arange(scores_BV.shape[-1], dtype=torch.int32, device=scores_BV.device)
    noise_BV = gumbel_noise(inputs.seed_B, inputs.choice_B, inputs.positions_B, token_ids_V)
    ids_B = torch.where(inputs.do_sample_B[:, None], scores_BV + noise_BV, scores_BV).argmax(dim=-1)
    return ids_B, chosen_logprobs(scores_BV, ids_B)


def choose_greedy(logits_BV: Tensor) -> tuple[Tensor, Tensor]:
    """The first of the largest scores and its log-probability."""
    # max and not argmax, which on a CPU takes one thread and, in bfloat16, many times as long.
    ids_B = logits_BV.max(dim=-1).indices
    return ids_B, chosen_logprobs(logits_BV, ids_B)


def chosen_logprobs(scores_BV: Tensor, ids_B: Tensor) -> Tensor:
    """float32 log-probability of each row's chosen token."""
    # log_softmax and not logsumexp: torch may split the sum of a lone row over threads, which would make a row's last
    # bits depend on how many neighbours it has.
    logprobs_BV = scores_BV.log_softmax(dim=-1, dtype=torch.float32)
    return logprobs_BV.gather(1, ids_B[:, None]).squeeze(1)


def top_tokens(logprobs_RV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` most likely tokens, best first, of equal ones the smaller id: int64 and float32 [R, count].

    A selection by value alone may take any of the tokens that are equal at its end. So it goes by one integer that
    no two tokens share: the value's bits, in an order that is theirs as numbers, before the id.
    """
    vocab_size = logprobs_RV.shape[-1]
    # Adding 0 makes -0.0 and 0.0 the same bits.
    bits_RV = (logprobs_RV + 0.0).view(torch.int32)
    order_RV = bits_RV ^ ((bits_RV >> 31) & 0x7FFFFFFF)
    ids_V = torch.arange(vocab_size, device=logprobs_RV.device)
    keys_RV = (order_RV.long() << 32) | (vocab_size - 1 - ids_V)
    ids_RN = vocab_size - 1 - (keys_RV.topk(count, dim=-1).values & 0xFFFFFFFF)
    return ids_RN, logprobs_RV.gather(1, ids_RN)
