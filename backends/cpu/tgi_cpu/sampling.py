"""Sampling that sorts only the candidates that can be chosen.

A row's result depends on that row alone, down to the last bit: rows are told apart by their own parameters, and each
kind is computed by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.contract import Sampled, SampleInputs
from tgi_core.reference import sampling as reference
from tgi_core.reference.noise import gumbel_noise
from tgi_core.sampling.params import Tier

_CANDIDATES = 512
"""Top scores that are sorted before the whole vocabulary is: nearly every top-k and top-p cuts within them."""

_SUMMED = 128
"""Numbers that are added up at a time."""


def sample(logits_BV: Tensor, inputs: SampleInputs) -> Sampled:
    """Apply the rules and choose; see ``Kernels.sample``."""
    if inputs.tier is Tier.GREEDY:
        return Sampled(*reference.choose_greedy(logits_BV))
    scores_BV = reference.apply_rules(logits_BV.float(), inputs)
    cut_B = (inputs.top_k_B > 0) | (inputs.top_p_B < 1)
    kinds = (
        (~inputs.do_sample_B, _choose_greedy),
        (inputs.do_sample_B & ~cut_B, _choose_from_all),
        (inputs.do_sample_B & cut_B, _choose_from_top),
    )
    ids_B = torch.empty(len(scores_BV), dtype=torch.int64)
    logprobs_B = torch.empty(len(scores_BV))
    for rows_B, choose in kinds:
        if inputs.whole_rows_R is not None:
            rows_B[inputs.whole_rows_R] = False
        rows_R = rows_B.nonzero().flatten()
        if len(rows_R):
            ids_B[rows_R], logprobs_B[rows_R] = choose(scores_BV[rows_R], inputs.take(rows_R))
    return reference.sample_whole_rows(scores_BV, inputs, ids_B, logprobs_B)


def _choose_greedy(scores_BV: Tensor, inputs: SampleInputs) -> tuple[Tensor, Tensor]:  # noqa: ARG001 - one signature
    return reference.choose_greedy(scores_BV)


def _choose_from_all(scores_BV: Tensor, inputs: SampleInputs) -> tuple[Tensor, Tensor]:
    scores_BV = reference.scale(scores_BV, inputs.temperature_B)
    return _choose(scores_BV, _all_ids(scores_BV), inputs)


def _choose_from_top(scores_BV: Tensor, inputs: SampleInputs) -> tuple[Tensor, Tensor]:
    scores_BV = reference.scale(scores_BV, inputs.temperature_B)
    top_BC, ids_BC = _candidates(scores_BV)
    kept_BC = reference.kept_ranks(top_BC, inputs.top_k_B, inputs.top_p_B, _sum(scores_BV.exp()))
    ranks_B, logprobs_B = _choose(top_BC.masked_fill(~kept_BC, reference.NEGATIVE_INFINITY), ids_BC.int(), inputs)
    ids_B = ids_BC.gather(1, ranks_B[:, None]).squeeze(1)
    # Unless the cut lies above the last candidate, scores that are no candidates may belong in: sort them all. So too
    # where top-p cuts what top-k leaves, and that is not all among the candidates.
    lowest_kept_B = top_BC.masked_fill(~kept_BC, torch.inf).amin(dim=-1)
    is_unsure_B = (inputs.top_k_B > _CANDIDATES) & (inputs.top_p_B < 1)
    rows_R = ((lowest_kept_B <= top_BC[:, -1]) | is_unsure_B).nonzero().flatten()
    if len(rows_R) and top_BC.shape != scores_BV.shape:
        some = inputs.take(rows_R)
        kept_RV = reference.keep_top(scores_BV[rows_R], some.top_k_B, some.top_p_B)
        ids_B[rows_R], logprobs_B[rows_R] = _choose(kept_RV, _all_ids(kept_RV), some)
    return ids_B, logprobs_B


def _candidates(scores_BV: Tensor) -> tuple[Tensor, Tensor]:
    """The best scores and their token ids, descending; of equal scores the smaller id comes first."""
    top_BC, ids_BC = scores_BV.topk(min(_CANDIDATES, scores_BV.shape[-1]), dim=-1)
    ids_BC, by_id_BC = ids_BC.sort(dim=-1)
    top_BC, by_score_BC = top_BC.gather(1, by_id_BC).sort(dim=-1, descending=True, stable=True)
    return top_BC, ids_BC.gather(1, by_score_BC)


def _sum(weights_BV: Tensor) -> Tensor:
    """Each row's sum [B, 1]: precise, and in an order that does not depend on the number of rows or threads."""
    end = weights_BV.shape[-1] // _SUMMED * _SUMMED
    blocks_BX = weights_BV[:, :end].reshape(len(weights_BV), -1, _SUMMED).sum(dim=-1)
    return torch.cat((blocks_BX, weights_BV[:, end:]), dim=1).cumsum(dim=-1)[:, -1:]


def _choose(scores_BX: Tensor, ids: Tensor, inputs: SampleInputs) -> tuple[Tensor, Tensor]:
    """The place of the largest score plus noise, and the score's log-probability."""
    noise_BX = gumbel_noise(inputs.seed_B, inputs.choice_B, inputs.positions_B, ids)
    places_B = noise_BX.add_(scores_BX).argmax(dim=-1)
    return places_B, reference.chosen_logprobs(scores_BX, places_B)


def _all_ids(scores_BV: Tensor) -> Tensor:
    return torch.arange(scores_BV.shape[-1], dtype=torch.int32)
