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
    kept_BC = _kept_candidates(scores_BV, top_BC, ids_BC, inputs)
    ranks_B, logprobs_B = _choose(top_BC.masked_fill(~kept_BC, reference.NEGATIVE_INFINITY), ids_BC.int(), inputs)
    ids_B = ids_BC.gather(1, ranks_B[:, None]).squeeze(1)
    # Unless the cut lies above the last candidate, scores that are no candidates may belong in: sort them all.
    lowest_kept_B = top_BC.masked_fill(~kept_BC, torch.inf).amin(dim=-1)
    rows_R = (lowest_kept_B <= top_BC[:, -1]).nonzero().flatten()
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


def _kept_candidates(scores_BV: Tensor, top_BC: Tensor, ids_BC: Tensor, inputs: SampleInputs) -> Tensor:
    """Which candidates top-k and top-p keep; see ``reference.kept_ranks``, which knows the whole vocabulary."""
    ranks_C = torch.arange(top_BC.shape[-1])
    within_k_BC = (ranks_C < inputs.top_k_B[:, None]) | (inputs.top_k_B[:, None] <= 0)
    among_k_BC = top_BC.masked_fill(~within_k_BC, reference.NEGATIVE_INFINITY).softmax(dim=-1)
    among_all_BC = scores_BV.softmax(dim=-1).gather(1, ids_BC)
    probs_BC = torch.where(inputs.top_k_B[:, None] > 0, among_k_BC, among_all_BC)
    mass_before_BC = probs_BC.cumsum(dim=-1) - probs_BC
    return within_k_BC & ((mass_before_BC < inputs.top_p_B[:, None]) | (inputs.top_p_B[:, None] >= 1) | (ranks_C == 0))


def _choose(scores_BX: Tensor, ids: Tensor, inputs: SampleInputs) -> tuple[Tensor, Tensor]:
    """The place of the largest score plus noise, and the score's log-probability."""
    noise_BX = gumbel_noise(inputs.seed_B, inputs.choice_B, inputs.positions_B, ids)
    places_B = noise_BX.add_(scores_BX).argmax(dim=-1)
    return places_B, reference.chosen_logprobs(scores_BX, places_B)


def _all_ids(scores_BV: Tensor) -> Tensor:
    return torch.arange(scores_BV.shape[-1], dtype=torch.int32)
