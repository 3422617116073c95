"""Sampling through a whole shard: rows follow their requests, and what is reported is what transformers says."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel
from transformers.generation import logits_process as theirs

from tests.support.driver import Driver, Generation
from tests.support.shards import start_shard
from tests.support.tiny_models import PROMPT_LENGTHS, VOCAB, make_model
from tgi_core.contract import AppendedBlocks, Kernels, KVBudget, LateInputs, ModelShard, NewSlot, StepPlan, StepResult
from tgi_core.reference import ReferenceKernels
from tgi_core.reference.noise import gumbel_noise
from tgi_core.sampling.params import SamplingParams
from tgi_cpu.kernels import CpuKernels

INF = float("inf")
EOS = (3, 9)
EVERYTHING = SamplingParams(
    do_sample=True,
    temperature=1.3,
    top_k=60,
    top_p=0.95,
    repetition_penalty=1.2,
    typical_p=0.95,
    min_p=0.001,
    frequency_penalty=0.3,
    presence_penalty=0.2,
    relative_frequency_penalty=0.5,
    logit_bias={5: 2.0, 7: -3.0},
    min_tokens=5,
    watermark_delta=1.0,
    top_n=3,
)

Running = tuple[ModelShard, KVBudget]


class Model:
    """A tiny model as transformers runs it, and its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hf: PreTrainedModel = make_model("llama", folder)
        generator = torch.Generator().manual_seed(5)
        self.prompts = [torch.randint(VOCAB, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """What follows each of the tokens: float32 [T, V]."""
        with torch.inference_mode():
            return self.hf(torch.tensor([token_ids]), use_cache=False).logits[0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("model"))


@contextlib.contextmanager
def running(model: Model, kernels: Kernels, **options: Any) -> Iterator[Running]:
    shard, budget = start_shard(model.folder, kernels, eos_token_ids=EOS, **options)
    yield shard, budget
    shard.close()


@pytest.fixture(scope="module", params=["reference", "cpu"])
def shard(request: pytest.FixtureRequest, model: Model) -> Iterator[Running]:
    with running(model, ReferenceKernels() if request.param == "reference" else CpuKernels()) as started:
        yield started


@pytest.fixture(scope="module")
def bf16(model: Model) -> Iterator[Running]:
    """The type in which the CPU backend's logits do not depend on the batch."""
    with running(model, CpuKernels(), dtype="bfloat16") as started:
        yield started


def run(running: Running, *generations: Generation, **options: Any) -> list[Generation]:
    Driver(*running, **options).run(generations)
    return list(generations)


def outcome(generation: Generation) -> tuple[object, ...]:
    return generation.token_ids, generation.logprobs, generation.tops, generation.prompt_logprobs


# -- rows follow their requests ---------------------------------------------------------------------------------------


def requests(model: Model, starts: Sequence[int] = (0,) * 5, lengths: Sequence[int] = (16,) * 5) -> list[Generation]:
    """Every rule, single rules, and none; all but one sampled."""
    samplings = [
        replace(EVERYTHING, seed=1),
        SamplingParams(do_sample=True, top_p=0.9, temperature=1.2, seed=2, choice=1),
        SamplingParams(repetition_penalty=1.4, frequency_penalty=0.4),
        replace(EVERYTHING, seed=3, choice=2, raw_logprobs=True, watermark_delta=0.0),
        SamplingParams(do_sample=True, seed=4, typical_p=0.9, min_tokens=30),
    ]
    return [
        Generation(prompt, length, sampling, start_step=start, prompt_logprobs=row % 2 == 1)
        for row, (prompt, sampling, start, length) in enumerate(
            zip(model.prompts, samplings, starts, lengths, strict=True)
        )
    ]


@pytest.fixture(scope="module")
def alone(model: Model, bf16: Running) -> list[Generation]:
    return [run(bf16, generation)[0] for generation in requests(model)]


@pytest.mark.parametrize("seed", range(4))
def test_joins_and_departures_change_nothing(model: Model, bf16: Running, alone: list[Generation], seed: int) -> None:
    """Each request enters at a step of its own and leaves at another, beside chunks of the others' prompts."""
    pick = random.Random(seed)
    starts = [pick.randrange(12) for _ in alone]
    lengths = [pick.randint(6, 16) for _ in alone]
    generations = run(bf16, *requests(model, starts, lengths), max_step_tokens=pick.choice([7, 64]), depth=1, seed=seed)
    for together, single in zip(generations, alone, strict=True):
        length = together.num_tokens
        assert together.token_ids == single.token_ids[:length]
        assert together.logprobs == single.logprobs[:length]
        assert together.tops == single.tops[:length]
        assert together.prompt_logprobs == single.prompt_logprobs


@pytest.mark.parametrize("known", [1, 4, 11])
def test_a_preempted_request_goes_on_where_it_stopped(
    model: Model, bf16: Running, alone: list[Generation], known: int
) -> None:
    """It comes back in another slot, with what it has made behind its prompt, in chunks."""
    again = [
        Generation(single.prompt, 16 - known, single.sampling, output=single.token_ids[:known]) for single in alone
    ]
    run(bf16, *reversed(again), max_step_tokens=13)
    for later, single in zip(again, alone, strict=True):
        assert later.token_ids == single.token_ids[known:]
        assert later.logprobs == single.logprobs[known:]
        assert later.tops == single.tops[known:]


def test_requests_say_something(alone: list[Generation]) -> None:
    """Equal outcomes would be cheap if every token were the same."""
    assert all(len(set(single.token_ids)) >= 6 for single in alone)
    assert len({tuple(single.token_ids) for single in alone}) == len(alone)


def test_choices_of_one_seed_differ_and_repeat(model: Model, shard: Running) -> None:
    sampling = SamplingParams(do_sample=True, temperature=1.5, seed=2**64 - 1)
    first, second, again = (Generation(model.prompts[0], 12, replace(sampling, choice=choice)) for choice in (0, 1, 0))
    run(shard, first, second, again)
    assert first.token_ids == again.token_ids
    assert first.token_ids != second.token_ids


# -- what transformers says -------------------------------------------------------------------------------------------


class AddsNoise(theirs.LogitsProcessor):  # type: ignore[misc]
    """Our noise behind transformers' warpers: its best token is then the one that sampling takes."""

    def __init__(self, params: SamplingParams, prompt_len: int) -> None:
        self.params = params
        self.prompt_len = prompt_len

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        seed = torch.tensor([self.params.seed])
        counter = torch.tensor([[self.params.choice], [input_ids.shape[1] - self.prompt_len]], dtype=torch.int32)
        return scores + gumbel_noise(seed, counter[0], counter[1], torch.arange(scores.shape[-1]).int())


def generate(model: Model, prompt: list[int], length: int, processors: list[Any]) -> list[int]:
    output = model.hf.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=length,
        do_sample=False,
        use_cache=False,
        logits_processor=LogitsProcessorList(processors),
    )
    return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_greedy_text_with_a_repetition_penalty(model: Model, shard: Running, penalty: float) -> None:
    sampling = SamplingParams(repetition_penalty=penalty)
    generations = run(shard, *(Generation(prompt, 16, sampling) for prompt in model.prompts))
    for generation, prompt in zip(generations, model.prompts, strict=True):
        processors = [theirs.RepetitionPenaltyLogitsProcessor(penalty)]
        assert generation.token_ids == generate(model, prompt, 16, processors)


def test_seeded_text(model: Model, shard: Running) -> None:
    samplings = [
        SamplingParams(do_sample=True, temperature=1.4, top_k=20, top_p=0.9, min_p=0.02, typical_p=0.9, seed=seed)
        for seed in range(len(model.prompts))
    ]
    generations = run(
        shard, *(Generation(*pair, s) for *pair, s in zip(model.prompts, [16] * 5, samplings, strict=True))
    )
    for generation, prompt, sampling in zip(generations, model.prompts, samplings, strict=True):
        processors = [
            theirs.TemperatureLogitsWarper(1.4),
            theirs.TopKLogitsWarper(20),
            theirs.TopPLogitsWarper(0.9),
            theirs.MinPLogitsWarper(0.02),
            theirs.TypicalLogitsWarper(0.9),
            AddsNoise(sampling, len(prompt)),
        ]
        assert generation.token_ids == generate(model, prompt, 16, processors)


@pytest.mark.parametrize("max_step_tokens", [64, 11])
def test_prompt_logprobs(model: Model, shard: Running, max_step_tokens: int) -> None:
    generations = [Generation(prompt, 2, prompt_logprobs=True) for prompt in model.prompts]
    run(shard, *generations, max_step_tokens=max_step_tokens)
    for generation in generations:
        expected = (
            model.logits(generation.prompt)
            .log_softmax(-1)[:-1]
            .gather(1, torch.tensor(generation.prompt[1:], dtype=torch.int64)[:, None])
        )
        torch.testing.assert_close(torch.tensor(generation.prompt_logprobs), expected[:, 0], rtol=1e-4, atol=1e-4)


def test_prompt_logprobs_come_in_pieces(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leave the logits of the other rows, and their own, as they are."""
    with running(model, CpuKernels(), dtype="bfloat16") as started:
        asking, neighbour = run(started, *(Generation(p, 6, prompt_logprobs=True) for p in model.prompts[1:3]))
        quiet, same_neighbour = run(started, *(Generation(p, 6) for p in model.prompts[1:3]))
        monkeypatch.setattr("tgi_core.shards.prompts.PIECE_ROWS", 7)
        (pieces,) = run(started, Generation(model.prompts[1], 6, prompt_logprobs=True))
    assert (asking.token_ids, asking.logprobs) == (quiet.token_ids, quiet.logprobs)
    assert (neighbour.token_ids, neighbour.logprobs) == (same_neighbour.token_ids, same_neighbour.logprobs)
    assert outcome(pieces) == outcome(asking)
    assert len(asking.prompt_logprobs) == len(model.prompts[1]) - 1
    assert quiet.prompt_logprobs == []


@pytest.mark.parametrize("sampling", [SamplingParams(top_n=4), SamplingParams(top_n=4, raw_logprobs=True)])
def test_alternatives_of_greedy_rows(model: Model, shard: Running, sampling: SamplingParams) -> None:
    plain, generation, other = run(
        shard,
        Generation(model.prompts[0], 8),
        Generation(model.prompts[1], 8, sampling),
        Generation(model.prompts[2], 8, SamplingParams(do_sample=True, top_n=2)),
    )
    assert plain.tops == []
    assert [len(top.token_ids) for top in other.tops] == [2] * 8
    tokens = generation.prompt + generation.token_ids
    logprobs = model.logits(tokens[:-1])[len(generation.prompt) - 1 :].log_softmax(-1)
    best = logprobs.topk(4)
    assert [top.token_ids for top in generation.tops] == best.indices.tolist()
    reported = torch.tensor([top.logprobs for top in generation.tops])
    torch.testing.assert_close(reported, best.values, rtol=1e-4, atol=1e-4)
    assert [top.logprobs[0] for top in generation.tops] == generation.logprobs


def test_cut_tokens_are_infinitely_unlikely_alternatives(model: Model, shard: Running) -> None:
    sampling = SamplingParams(do_sample=True, top_k=2, top_n=4, seed=1)
    (generation,) = run(shard, Generation(model.prompts[0], 4, sampling))
    for top, token_id, logprob in zip(generation.tops, generation.token_ids, generation.logprobs, strict=True):
        assert len(top.token_ids) == 4
        assert top.logprobs[2:] == [-INF, -INF]
        assert dict(zip(top.token_ids, top.logprobs, strict=True))[token_id] == logprob


def test_the_models_own_logprobs_beside_rules(model: Model, shard: Running) -> None:
    sampling = replace(EVERYTHING, raw_logprobs=True, seed=9)
    (generation,) = run(shard, Generation(model.prompts[1], 8, sampling))
    tokens = generation.prompt + generation.token_ids
    logprobs = model.logits(tokens[:-1])[len(generation.prompt) - 1 :].log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(generation.token_ids)[:, None])[:, 0]
    assert generation.logprobs == pytest.approx(chosen.tolist(), abs=1e-4)
    assert [top.token_ids for top in generation.tops] == logprobs.topk(3).indices.tolist()


def test_min_tokens_forbids_the_models_ends(model: Model, shard: Running) -> None:
    wants_an_end = SamplingParams(logit_bias={EOS[0]: 90.0, EOS[1]: 100.0})
    early, late = run(
        shard,
        Generation(model.prompts[0], 6, wants_an_end),
        Generation(model.prompts[0], 6, replace(wants_an_end, min_tokens=4)),
    )
    assert early.token_ids == [EOS[1]] * 6
    assert not set(late.token_ids[:4]) & set(EOS)
    assert late.token_ids[4:] == [EOS[1]] * 2


# -- late inputs ------------------------------------------------------------------------------------------------------


def mask_of(*token_ids: int) -> bytes:
    return sum(1 << token for token in token_ids).to_bytes(4 * -(-VOCAB // 32), "little")


class Batch:
    """Three requests in slots 4, 0 and 2, step by step."""

    slots = (4, 0, 2)

    def __init__(self, running: Running, model: Model, samplings: Sequence[SamplingParams]) -> None:
        self.shard = running[0]
        self.prompts = model.prompts[:3]
        self.samplings = samplings
        self.steps = 0
        self.outputs: list[list[int]] = [[], [], []]

    def step(self, late: LateInputs | None = None) -> StepResult:
        first = self.steps == 0
        self.steps += 1
        lengths = [len(prompt) + len(output) for prompt, output in zip(self.prompts, self.outputs, strict=True)]
        entering = zip(self.slots, self.prompts, self.samplings, strict=True)
        plan = StepPlan(
            step=self.steps,
            slots=list(self.slots),
            epochs=[7, 8, 9],
            q_lens=lengths if first else [1] * 3,
            kv_lens=lengths,
            samples=[True] * 3,
            num_decodes=0 if first else 3,
            tier=max(sampling.tier for sampling in self.samplings),
            new_slots=[NewSlot(slot, prompt, len(prompt), params) for slot, prompt, params in entering if first],
            appended_blocks=[
                AppendedBlocks(0, slot, 0, [8 * row + b for b in range(8)])
                for row, slot in enumerate(self.slots)
                if first
            ],
            late=late is not None,
        )
        ticket = self.shard.launch(plan)
        self.shard.sample(ticket, late)
        result = self.shard.collect(ticket)
        for slot, token_id in zip(result.slots, result.token_ids, strict=True):
            self.outputs[self.slots.index(slot)].append(token_id)
        return result


def test_a_row_that_sits_out_loses_nothing(model: Model, shard: Running) -> None:
    """Its tables stay, the result does not name it, and the next step draws what this one would have drawn."""
    samplings = [replace(EVERYTHING, seed=1), SamplingParams(), SamplingParams(do_sample=True, seed=2, top_n=2)]
    plain, delayed = Batch(shard, model, samplings), Batch(shard, model, samplings)
    for _ in range(5):
        plain.step()
    assert (delayed.step(LateInputs([], b"", [1]))).slots == [4, 2]
    result = delayed.step(LateInputs([], b"", [0, 1]))
    assert (result.slots, result.epochs, len(result.tops)) == ([2], [9], 1)
    assert delayed.step(LateInputs([], b"", [0, 1, 2])).slots == []
    for _ in range(3):
        delayed.step()
    for output, expected in zip(delayed.outputs, plain.outputs, strict=True):
        assert output == expected[: len(output)]
    assert [len(output) for output in delayed.outputs] == [4, 3, 5]


@pytest.mark.parametrize("sampled", [False, True])
def test_masks(model: Model, shard: Running, sampled: bool) -> None:
    """The masked tokens are never chosen; the model's own log-probabilities know nothing of the mask."""
    own = SamplingParams(do_sample=sampled, temperature=1.5, raw_logprobs=True, seed=3)
    free = SamplingParams(do_sample=sampled, seed=4)
    batch = Batch(shard, model, [own, free, replace(free, top_n=3, temperature=1.2)])
    allowed = {0: (3, 40, 41), 2: (100,)}
    result = batch.step(LateInputs([2, 0], mask_of(*allowed[2]) + mask_of(*allowed[0])))
    assert result.token_ids[0] in allowed[0]
    assert result.token_ids[2] == 100
    assert result.logprobs[2] == 0.0
    assert result.tops[1] is None
    assert result.tops[2] is not None
    assert result.tops[2].logprobs == [0.0, -INF, -INF]
    raw = model.logits(batch.prompts[0])[-1].log_softmax(-1)
    assert result.logprobs[0] == pytest.approx(raw[result.token_ids[0]].item(), abs=1e-4)
    alone = Batch(shard, model, [free] * 3).step()
    assert result.token_ids[1] == alone.token_ids[1]


def test_masks_in_a_step_that_is_otherwise_greedy(model: Model, shard: Running) -> None:
    batch = Batch(shard, model, [SamplingParams(raw_logprobs=True), SamplingParams(), SamplingParams()])
    result = batch.step(LateInputs([0, 1], mask_of(40) + mask_of(41)))
    assert result.token_ids[:2] == [40, 41]
    assert result.logprobs[0] == pytest.approx(model.logits(batch.prompts[0])[-1].log_softmax(-1)[40].item(), abs=1e-4)
    assert result.logprobs[1] == 0.0


def test_a_mask_that_leaves_only_the_end_beats_min_tokens(model: Model, shard: Running) -> None:
    batch = Batch(shard, model, [SamplingParams(min_tokens=5)] * 3)
    result = batch.step(LateInputs([0, 1], mask_of(EOS[0]) + mask_of(EOS[0], 50)))
    assert result.token_ids[:2] == [EOS[0], 50]
    assert result.logprobs[:2] == [0.0, 0.0]
