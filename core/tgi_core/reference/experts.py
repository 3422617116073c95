"""Routing of tokens to experts."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.contract.experts import Routed, RoutingSpec, Scoring


def route(logits_TX: Tensor, spec: RoutingSpec, bias_X: Tensor | None) -> Routed:
    """Choose each token's experts; see ``ExpertKernels.route``."""
    logits_TX = logits_TX.float()
    match spec.scoring:
        case Scoring.SPARSE_MIXER:
            return _mix_sparsely(logits_TX, spec)
        case Scoring.SOFTMAX_CHOSEN:
            best_TR, experts_TR = logits_TX.topk(spec.top_k, dim=-1)
            return Routed(best_TR.softmax(dim=-1) * spec.scale, experts_TR)
        case Scoring.SIGMOID_CHOSEN:
            best_TR, experts_TR = logits_TX.topk(spec.top_k, dim=-1)
            return Routed(best_TR.sigmoid() * spec.scale, experts_TR)
        case Scoring.SOFTMAX:
            scores_TX = logits_TX.softmax(dim=-1)
        case Scoring.SIGMOID:
            scores_TX = logits_TX.sigmoid()
    wanted_TX = scores_TX if bias_X is None else scores_TX + bias_X.float()
    if spec.num_groups > 1:
        wanted_TX = _keep_best_groups(wanted_TX, spec)
    experts_TR = wanted_TX.topk(spec.top_k, dim=-1).indices
    weights_TR = scores_TX.gather(1, experts_TR)
    if spec.renormalize:
        # Scores of a sigmoid can all be 0.
        weights_TR = weights_TR / weights_TR.sum(dim=-1, keepdim=True).clamp(min=1e-20)
    return Routed(weights_TR * spec.scale, experts_TR)


def _keep_best_groups(scores_TX: Tensor, spec: RoutingSpec) -> Tensor:
    groups_TGS = scores_TX.view(len(scores_TX), spec.num_groups, -1)
    values_TG = groups_TGS.topk(spec.group_scores, dim=-1).values.sum(dim=-1)
    best_TR = values_TG.topk(spec.top_groups, dim=-1).indices
    dropped_TG = torch.ones_like(values_TG, dtype=torch.bool).scatter_(1, best_TR, value=False)
    return groups_TGS.masked_fill(dropped_TG[..., None], float("-inf")).flatten(1)


def _mix_sparsely(logits_TX: Tensor, spec: RoutingSpec) -> Routed:
    left_TX, weights, experts = logits_TX, [], []
    for _ in range(spec.top_k):
        best_T1, expert_T1 = left_TX.max(dim=-1, keepdim=True)
        distance_TX = (best_T1 - logits_TX) / logits_TX.abs().clamp(min=best_T1)
        close_TX = left_TX.masked_fill(distance_TX > spec.closeness, float("-inf"))
        weights.append(close_TX.softmax(dim=-1).gather(1, expert_T1))
        experts.append(expert_T1)
        left_TX = left_TX.scatter(1, expert_T1, float("-inf"))
    return Routed(torch.cat(weights, dim=-1) * spec.scale, torch.cat(experts, dim=-1))
