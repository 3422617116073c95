"""Whole models through the kernels, as a shard puts them together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.backends.triton.support import SMALL
from tests.support.architectures import make_model
from tests.support.driver import Driver, Generation
from tests.support.shards import RecordsLogits, start_shard
from tgi_triton import TritonKernels


class WatchedTriton(RecordsLogits, TritonKernels):
    """The kernels, watched."""

    def __init__(self) -> None:
        TritonKernels.__init__(self, torch.device("cpu"), SMALL)
        self.logits = {}


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["bloom-6-heads", "cohere2", "exaone4", "gpt_oss", "mixtral", "opt-350m", "phi"])
def test_logits_equal_transformers(variant: str, tmp_path: Path) -> None:
    model = make_model(variant, tmp_path)
    kernels = WatchedTriton()
    shard, budget = start_shard(tmp_path, kernels, max_step_tokens=16)
    assert shard.notes == []
    kernels.logits.clear()
    generations = [Generation(list(range(5, 5 + length)), 2) for length in (23, 4)]
    Driver(shard, budget, max_step_tokens=9).run(generations)
    shard.close()
    for slot, generation in enumerate(generations):
        tokens = [*generation.prompt, *generation.token_ids[:-1]]
        with torch.inference_mode():
            expected_TV = model(torch.tensor([tokens]), use_cache=False).logits[0, len(generation.prompt) - 1 :]
        torch.testing.assert_close(torch.stack(kernels.logits[slot]), expected_TV, rtol=1e-4, atol=1e-4)
