"""In bfloat16 a row's logits are the same bits whatever it is batched with and however its tokens were cut up."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.driver import Driver, Generation
from tests.support.shards import WatchedCpu, start_shard
from tgi_core.contract import KVBudget, ModelShard
from tgi_core.sampling.params import SamplingParams
from tgi_cpu.linear import has_packed_linear

NEW_TOKENS = 12

# Three query heads a key head, as in SmolLM2: an awkward number for matrix kernels. Layers alternate between full
# attention and a window that long prompts leave behind.
CONFIG = {
    "model_type": "gemma3_text",
    "vocab_size": 1000,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 40,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "query_pre_attn_scalar": 32,
}


class Run:
    """One shard; ``generate`` returns each request's logits rows."""

    def __init__(self, shard: ModelShard, budget: KVBudget, kernels: WatchedCpu) -> None:
        self.shard = shard
        self.budget = budget
        self.kernels = kernels

    def generate(
        self, prompts: list[list[int]], *, max_step_tokens: int, num_tokens: int = NEW_TOKENS, sample: bool = False
    ) -> tuple[list[Generation], list[torch.Tensor]]:
        self.kernels.logits.clear()
        generations = [
            Generation(prompt, num_tokens, SamplingParams(do_sample=True, top_p=0.9, seed=slot) if sample else None)
            for slot, prompt in enumerate(prompts)
        ]
        Driver(self.shard, self.budget, max_step_tokens=max_step_tokens, depth=1).run(generations)
        return generations, [torch.stack(self.kernels.logits[slot]) for slot in range(len(prompts))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@contextlib.contextmanager
def start(folder: Path, threads: int) -> Iterator[Run]:
    kernels = WatchedCpu()
    shard, budget = start_shard(
        folder, kernels, dtype="bfloat16", load_format="dummy", max_total_tokens=900, max_slots=16, threads=threads
    )
    yield Run(shard, budget, kernels)
    shard.close()


@pytest.fixture(scope="module")
def run(folder: Path) -> Iterator[Run]:
    with start(folder, 1) as running:
        yield running


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    pick = random.Random(0)
    lengths = [1, 2, 3, 5, 15, 16, 17, 31, 40, 41, 57, 100, 130, 200, 530, 700]
    return [[pick.randrange(1000) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def batched(run: Run, prompts: list[list[int]]) -> tuple[list[Generation], list[torch.Tensor]]:
    return run.generate(prompts, max_step_tokens=2048)


def test_this_machine_takes_the_prepacked_path() -> None:
    """The other tests here prove nothing about oneDNN's packed linears where they are missing."""
    assert has_packed_linear()


@pytest.mark.parametrize("index", [0, 3, 6, 9, 12, 15])
def test_alone_and_in_a_batch_of_sixteen(
    run: Run, prompts: list[list[int]], batched: tuple[list[Generation], list[torch.Tensor]], index: int
) -> None:
    generations, logits = batched
    (alone,), (rows,) = run.generate([prompts[index]], max_step_tokens=2048)
    assert alone.token_ids == generations[index].token_ids
    assert alone.logprobs == generations[index].logprobs
    assert torch.equal(rows, logits[index])


@pytest.mark.parametrize("max_step_tokens", [61, 300])
def test_whole_and_chunked_prompts(
    run: Run,
    prompts: list[list[int]],
    batched: tuple[list[Generation], list[torch.Tensor]],
    max_step_tokens: int,
) -> None:
    _, rows = run.generate(prompts, max_step_tokens=max_step_tokens)
    for chunked, whole in zip(rows, batched[1], strict=True):
        assert torch.equal(chunked, whole)


@pytest.mark.parametrize("index", [0, 8, 15])
def test_decoded_and_recomputed_tokens(
    run: Run, prompts: list[list[int]], batched: tuple[list[Generation], list[torch.Tensor]], index: int
) -> None:
    """A preempted request computes its output again as part of a prompt."""
    generations, logits = batched
    for known in (1, 2, NEW_TOKENS - 1):
        prompt = prompts[index] + generations[index].token_ids[:known]
        _, (rows,) = run.generate([prompt], max_step_tokens=2048, num_tokens=1)
        assert torch.equal(rows[0], logits[index][known])


def test_sampled_rows_do_not_depend_on_their_neighbours(run: Run, prompts: list[list[int]]) -> None:
    together, _ = run.generate(prompts[:5], max_step_tokens=2048, sample=True)
    (alone,), _ = run.generate(prompts[:1], max_step_tokens=2048, sample=True)
    assert alone.token_ids == together[0].token_ids
    assert alone.logprobs == together[0].logprobs


def test_two_threads(folder: Path, prompts: list[list[int]]) -> None:
    """torch may share out the work of one row among threads; not so that its bits change."""
    with start(folder, 2) as run:
        together, logits = run.generate(prompts[8:14], max_step_tokens=2048, num_tokens=3)
        (alone,), (rows,) = run.generate([prompts[12]], max_step_tokens=2048, num_tokens=3)
        assert torch.equal(rows, logits[4])
        assert alone.logprobs == together[4].logprobs


def test_the_model_reacts_to_what_it_reads(batched: tuple[list[Generation], list[torch.Tensor]]) -> None:
    """Equal bits would be cheap if all rows were alike."""
    rows = [tuple(row.tolist()) for rows in batched[1] for row in rows]
    assert len(set(rows)) == len(rows)
