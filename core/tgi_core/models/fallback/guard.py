"""Proof, with weights, that a model over our attention computes what transformers computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tgi_core.contract import AttentionSpec
from tgi_core.models.fallback.agreement import attending_with, difference, most_difference
from tgi_core.models.fallback.hook import attending
from tgi_core.models.fallback.probe import attention_of_call
from tgi_core.models.fallback.refusal import refuse
from tgi_core.models.fallback.split import SplitModel

_TOKENS = 8


def check_model(model: Any, layers: Sequence[AttentionSpec]) -> tuple[SplitModel, Tensor]:
    """Split ``model`` and compare a few tokens' logits with those of its own attention.

    Returns the split model and a row of its hidden states.

    Raises:
        StartupError: attention is not called once a layer as the probe found, or the logits differ.
    """
    vocab_size = model.get_input_embeddings().weight.shape[0]
    ids_T = torch.arange(_TOKENS, device=model.device) % vocab_size
    positions_T = torch.arange(_TOKENS, device=model.device)
    with attending_with(model, "eager"):
        expected_TV = model(input_ids=ids_T[None], position_ids=positions_T[None], use_cache=False).logits[0]
    split = SplitModel(model)
    attends = _Attends()
    with attending(attends):
        hidden_TE = split.hidden(ids_T, positions_T)
    if attends.layers != list(layers):
        raise refuse(
            f"with its weights it called the attention it was given {len(attends.layers)} times, otherwise than "
            f"{len(layers)} layers do"
        )
    found_TV = split.logits(hidden_TE)
    error = difference(found_TV, expected_TV)
    if not error <= most_difference(hidden_TE.dtype):
        raise refuse(f"over our attention its logits are off by {error:.1%}: not all that it asks for is told")
    return split, hidden_TE[-1].clone()


class _Attends:
    """Plain causal attention over the tokens of one sequence."""

    def __init__(self) -> None:
        self.layers: list[AttentionSpec] = []

    def __call__(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, arguments: dict[str, Any]) -> Tensor:
        spec = attention_of_call(q_THD, k_TKD, v_TKD, arguments)
        self.layers.append(spec)
        groups = spec.num_heads // spec.num_kv_heads
        keys_THD, values_THD = (x_TKD.repeat_interleave(groups, dim=1).float() for x_TKD in (k_TKD, v_TKD))
        scores_HTT = torch.einsum("qhd,khd->hqk", q_THD.float(), keys_THD) * spec.scale
        if spec.soft_cap is not None:
            scores_HTT = torch.tanh(scores_HTT / spec.soft_cap) * spec.soft_cap
        positions_T = torch.arange(len(q_THD), device=q_THD.device)
        distances_TT = positions_T[:, None] - positions_T
        hidden_TT = distances_TT < 0
        if spec.window is not None:
            hidden_TT |= distances_TT >= spec.window
        weights_HTT = scores_HTT.masked_fill(hidden_TT, float("-inf")).softmax(dim=-1)
        return torch.einsum("hqk,khd->qhd", weights_HTT, values_THD).to(q_THD.dtype)
