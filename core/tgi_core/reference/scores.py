"""What becomes of attention's scores before their softmax, under static shapes."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.contract.kernels import AttentionSpec


def finish_scores(
    scores_BKGQC: Tensor,
    distances_BQC: Tensor,
    positions_BQ: Tensor,
    spec: AttentionSpec,
    distance_bias_HX: Tensor | None,
) -> Tensor:
    """Cap the scores, add what a model adds to them, and set to -inf what a query does not see; float32.

    Args:
        scores_BKGQC: scaled products of queries and keys, float32.
        distances_BQC: from a query's position back to a key's; below 0 where there is no key to see.
        positions_BQ: of the queries.
        spec: the layer's attention; its window and its chunk count.
        distance_bias_HX: where ``spec.distances``.
    """
    if spec.soft_cap is not None:
        scores_BKGQC = torch.tanh(scores_BKGQC / spec.soft_cap) * spec.soft_cap
    by_head = (spec.num_kv_heads, -1, *distances_BQC.shape)
    if spec.alibi_slopes is not None:
        # Filled on the device: a step that is recorded brings nothing from the host.
        slopes = [torch.full((1, 1, 1, 1), slope, device=scores_BKGQC.device) for slope in spec.alibi_slopes]
        bias_HBQC = -torch.cat(slopes) * distances_BQC
        scores_BKGQC = scores_BKGQC + bias_HBQC.view(by_head).movedim(2, 0)
    if distance_bias_HX is not None:
        last = distance_bias_HX.shape[1] - 1
        bias_HBQC = distance_bias_HX.float()[:, distances_BQC.clamp(0, last)]
        scores_BKGQC = scores_BKGQC + bias_HBQC.view(by_head).movedim(2, 0)
    hidden_BQC = distances_BQC < 0
    if spec.window is not None:
        hidden_BQC |= distances_BQC >= spec.window
    if spec.chunk is not None:
        hidden_BQC |= distances_BQC > (positions_BQ % spec.chunk)[:, :, None]
    return scores_BKGQC.masked_fill(hidden_BQC[:, None, None], float("-inf"))
