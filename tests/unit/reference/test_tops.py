"""The most likely tokens: their order, ties, and how many of them are reported."""

from __future__ import annotations

import pytest
import torch

from tgi_core.reference.sampling import top_tokens
from tgi_core.shards.slots import SlotSampling

INF = float("inf")


def test_ties_go_to_the_smaller_ids() -> None:
    logprobs_RV = torch.full((2, 3000), -5.0)
    logprobs_RV[0, [2999, 5, 1700]] = torch.tensor([-1.0, -2.0, -1.0])
    logprobs_RV[1] = -INF
    logprobs_RV[1, [70, 60]] = torch.tensor([0.0, -0.0])
    ids_RN, values_RN = top_tokens(logprobs_RV, 5)
    assert ids_RN.tolist() == [[1700, 2999, 5, 0, 1], [60, 70, 0, 1, 2]]
    assert values_RN.tolist() == [[-1.0, -1.0, -2.0, -5.0, -5.0], [0.0, 0.0, -INF, -INF, -INF]]


def test_order_equals_a_stable_sort() -> None:
    logprobs_RV = torch.randn(3, 500, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    expected = logprobs_RV.sort(dim=-1, descending=True, stable=True)
    ids_RN, values_RN = top_tokens(logprobs_RV, 500)
    assert torch.equal(ids_RN, expected.indices)
    assert torch.equal(values_RN, expected.values)


@pytest.mark.parametrize(
    ("logprobs", "count"),
    [
        ([-1.0, -2.0, -3.0, -4.0], 2),
        ([-1.0, -2.0, -2.0, -3.0], 3),
        ([-1.0, -1.0, -1.0, -1.0], 4),
        ([-1.0, -1.0, -1.0, -1.0, -1.0], 4),
        ([-1.0, -INF, -INF, -INF], 2),
        ([-1.0, -2.0], 2),
        ([-1.0], 1),
    ],
)
def test_ties_with_the_last_one_are_reported(logprobs: list[float], count: int) -> None:
    """Two are asked for."""
    ids = list(range(10, 10 + len(logprobs)))
    top = SlotSampling(top_n=2).trim(ids, logprobs)
    assert (top.token_ids, top.logprobs) == (ids[:count], logprobs[:count])
    exact = SlotSampling(top_n=2, raw_logprobs=True).trim(ids, logprobs)
    assert len(exact.token_ids) == min(2, len(ids))
