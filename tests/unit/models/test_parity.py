"""Every architecture gives transformers' greedy tokens, however its requests are batched, cut and placed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.driver import Driver, Generation
from tests.support.shards import KERNELS, start_shard
from tests.support.tiny_models import CONFIGS, NEW_TOKENS, Reference, make_model, reference
from tgi_core.contract import KVBudget
from tgi_core.shards import EagerShard


@pytest.fixture(scope="module", params=list(CONFIGS))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, reference(make_model(request.param, folder))


@pytest.fixture(params=list(KERNELS))
def running(
    request: pytest.FixtureRequest, tiny: tuple[Path, Reference]
) -> Iterator[tuple[EagerShard, KVBudget, dict[int, list[torch.Tensor]]]]:
    kernels = KERNELS[request.param]()
    shard, budget = start_shard(tiny[0], kernels)
    kernels.logits.clear()
    yield shard, budget, kernels.logits
    shard.close()


def test_tokens_and_logits_equal_transformers(
    tiny: tuple[Path, Reference], running: tuple[EagerShard, KVBudget, dict[int, list[torch.Tensor]]]
) -> None:
    expected = tiny[1]
    shard, budget, logits = running

    def generate(prompts: list[list[int]], *, max_step_tokens: int, depth: int) -> list[Generation]:
        generations = [Generation(prompt, NEW_TOKENS) for prompt in prompts]
        driver = Driver(shard, budget, max_step_tokens=max_step_tokens, depth=depth, seed=depth)
        driver.run(generations)
        return generations

    alone = generate(expected.prompts[1:2], max_step_tokens=64, depth=0)
    assert alone[0].token_ids == expected.continuations[1]
    torch.testing.assert_close(torch.stack(logits[0]), expected.logits[1], rtol=1e-4, atol=1e-4)
    logits.clear()

    # Steps of 13 tokens cut the prompts off the block boundaries and mix prefill with decode.
    ragged = generate(expected.prompts, max_step_tokens=13, depth=1)
    assert [generation.token_ids for generation in ragged] == expected.continuations
    for slot, rows in enumerate(expected.logits):
        torch.testing.assert_close(torch.stack(logits[slot]), rows, rtol=1e-4, atol=1e-4)
        chosen = rows.log_softmax(dim=-1).gather(1, torch.tensor(expected.continuations[slot])[:, None]).squeeze(1)
        torch.testing.assert_close(torch.tensor(ragged[slot].logprobs), chosen, rtol=1e-4, atol=1e-4)
