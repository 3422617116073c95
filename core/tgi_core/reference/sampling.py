"""The sampling rules and the choice. Scores are float32; the rules and their order are those of ``Kernels.sample``."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.contract.kernels import SampleInputs
from tgi_core.reference.noise import gumbel_noise
from tgi_core.sampling.params import Tier

NEGATIVE_INFINITY = float("-inf")


def sample(logits_BV: Tensor, inputs: SampleInputs) -> tuple[Tensor, Tensor]:
    """Apply the rules and choose; see ``Kernels.sample``."""
    if inputs.tier is Tier.GREEDY:
        return choose_greedy(logits_BV)
    scores_BV = logits_BV.float()
    if inputs.tier is Tier.FULL:
        scores_BV = apply_repetition_penalty(scores_BV, inputs)
    sampled_B1 = inputs.do_sample_B[:, None]
    warped_BV = keep_top(scale(scores_BV, inputs.temperature_B), inputs.top_k_B, inputs.top_p_B)
    scores_BV = torch.where(sampled_B1, warped_BV, scores_BV)
    token_ids_V = torch.arange(scores_BV.shape[-1], dtype=torch.int32, device=scores_BV.device)
    noise_BV = gumbel_noise(inputs.seed_B, inputs.positions_B, token_ids_V)
    ids_B = torch.where(sampled_B1, scores_BV + noise_BV, scores_BV).argmax(dim=-1)
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


def apply_repetition_penalty(scores_BV: Tensor, inputs: SampleInputs) -> Tensor:
    """Divide positive and multiply negative scores of every distinct token so far. Source: Keskar et al. 2019."""
    ids_BL = inputs.tokens_SL[:, : inputs.max_length].index_select(0, inputs.slots_B).long()
    columns_L = torch.arange(inputs.max_length, device=ids_BL.device)
    # Columns past the row's length repeat its first token: writing the same value twice changes nothing.
    ids_BL = torch.where(columns_L < inputs.lengths_B[:, None], ids_BL, ids_BL[:, :1])
    picked_BL = scores_BV.gather(1, ids_BL)
    penalty_B1 = inputs.repetition_penalty_B[:, None]
    penalised_BL = torch.where(picked_BL < 0, picked_BL * penalty_B1, picked_BL / penalty_B1)
    return scores_BV.scatter(1, ids_BL, penalised_BL)


def scale(scores_BV: Tensor, temperature_B: Tensor) -> Tensor:
    """Divide by the temperature. The row's maximum goes first, so that no temperature can overflow to NaN."""
    return (scores_BV - scores_BV.amax(dim=-1, keepdim=True)) / temperature_B[:, None]


def keep_top(scores_BV: Tensor, top_k_B: Tensor, top_p_B: Tensor) -> Tensor:
    """Set to -inf what top-k and top-p cut off. Of equal scores the smaller token id ranks higher.

    Top-k keeps the k best (0 keeps all). Top-p then keeps the smallest set of best tokens whose probability reaches p,
    at least one (1 keeps all). Source: Holtzman et al. 2020.
    """
    sorted_BV, order_BV = scores_BV.sort(dim=-1, descending=True, stable=True)
    kept_BV = kept_ranks(sorted_BV, top_k_B, top_p_B)
    return scores_BV.masked_fill(~torch.empty_like(kept_BV).scatter_(1, order_BV, kept_BV), NEGATIVE_INFINITY)


def kept_ranks(sorted_BR: Tensor, top_k_B: Tensor, top_p_B: Tensor) -> Tensor:
    """Which ranks of descending scores stay, bool [B, R]."""
    ranks_R = torch.arange(sorted_BR.shape[-1], device=sorted_BR.device)
    kept_BR = (ranks_R < top_k_B[:, None]) | (top_k_B[:, None] <= 0)
    probs_BR = sorted_BR.masked_fill(~kept_BR, NEGATIVE_INFINITY).softmax(dim=-1)
    mass_before_BR = probs_BR.cumsum(dim=-1) - probs_BR
    return kept_BR & ((mass_before_BR < top_p_B[:, None]) | (top_p_B[:, None] >= 1) | (ranks_R == 0))
