"""``python -m bench.sampling``: what sampling parameters and constraints cost the engine's host, on the null backend.

The null backend computes nothing, so a step's time is scheduler, loop and frames. Rules themselves run on the device;
what the host adds is measured here:

- parameters: a decode step of 256 requests with neutral parameters and with every rule on (and five alternatives each);
- neighbours: 64 free requests beside 64 constrained ones on a device whose steps take 12 ms, at a vocabulary of 262,144
  tokens, against the same 64 free requests alone with as many other free ones. The sides alternate.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import click
import msgspec

from bench.grammar.tokenizer import VOCAB_SIZE, synthetic_tokenizer
from tgi_core.contract import ShardLimits, ShardSpec
from tgi_core.engine.frames import (
    Command,
    EngineMessage,
    RequestFailed,
    StepFrame,
    Submit,
    pack_ids,
    unpack_request_ids,
)
from tgi_core.engine.loop import EngineLoop
from tgi_core.plugins import Plugins
from tgi_core.sampling import SamplingParams
from tgi_core.sampling.grammar import Constraints, Grammar, GrammarKind, Vocabulary
from tgi_core.scheduler import Scheduler, SchedulerConfig
from tgi_core.testing.null_backend import NullBackend, NullCosts

ROWS, STEPS, ROUNDS = 256, 300, 5
FREE, CONSTRAINED, STEP_MS, NEIGHBOUR_STEPS = 64, 64, 12.0, 150
MOST_MS_A_STEP, MOST_LOSS = 1.0, 0.05

EVERY_RULE = SamplingParams(
    do_sample=True,
    temperature=0.8,
    top_k=40,
    top_p=0.9,
    typical_p=0.9,
    min_p=0.01,
    repetition_penalty=1.1,
    frequency_penalty=0.1,
    presence_penalty=0.1,
    relative_frequency_penalty=0.1,
    logit_bias={7: 1.0, 8: -1.0},
    min_tokens=4,
    watermark_delta=2.0,
    top_n=5,
    seed=7,
)

# Strings that never end by themselves keep every row constrained for the whole run.
LONG_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "kind": {"enum": ["a", "b", "c"]},
            "size": {"type": "integer", "minimum": 0, "maximum": 999},
        },
        "required": ["name", "kind", "size"],
        "additionalProperties": False,
    },
    "minItems": 500,
}


class Report(msgspec.Struct, frozen=True):
    """Medians over the rounds.

    Attributes:
        neutral_ms, every_rule_ms: of a step of 256 requests.
        alone_tokens_per_s: of 64 free requests beside 64 free ones.
        beside_tokens_per_s: of the same beside 64 constrained ones.
        constrained_tokens_per_s: of these.
        loss: share of their tokens that the free ones lose.
    """

    neutral_ms: float
    every_rule_ms: float
    alone_tokens_per_s: float
    beside_tokens_per_s: float
    constrained_tokens_per_s: float
    loss: float


class _Channel:
    """Hands in all requests at once and counts the tokens of each."""

    def __init__(self, submits: list[Submit]) -> None:
        self.tokens = [0] * len(submits)
        self._submits = submits

    def receive(self, timeout_ms: int) -> list[tuple[bytes, Command]]:  # noqa: ARG002 - nothing is waited for
        submits, self._submits = self._submits, []
        return [(b"bench", submit) for submit in submits]

    def send(self, worker: bytes, message: EngineMessage) -> bool:  # noqa: ARG002 - there is one
        if isinstance(message, RequestFailed):
            raise RuntimeError(message.message)
        assert isinstance(message, StepFrame)
        for request_id in unpack_request_ids(message.request_ids):
            self.tokens[request_id] += 1
        return True


def _run(
    folder: Path, submits: list[Submit], costs: NullCosts, steps: int, constraints: Constraints | None = None
) -> tuple[float, list[int]]:
    """Seconds of ``steps`` decode steps, and the tokens of each request in them."""
    shard = NullBackend(costs).create_shard(ShardSpec(model_dir=folder, dtype="float32"))
    shard.load(_ignore_progress)
    limits = ShardLimits(max_slots=len(submits), max_step_tokens=4096, block_size=16, max_total_tokens=2048)
    config = SchedulerConfig(max_slots=len(submits), max_step_tokens=4096, eos_token_ids=frozenset({VOCAB_SIZE - 1}))
    channel = _Channel(submits)
    loop = EngineLoop(
        shard,
        Scheduler(config, shard.warm_up(limits)),
        channel,
        run_ahead=1,
        max_total_tokens=2048,
        constraints=constraints,
    )
    # All are running, matchers made, before the clock starts.
    while min(channel.tokens) < 4:
        loop.iterate()
    first, before = loop.num_steps, list(channel.tokens)
    started = time.perf_counter()
    while loop.num_steps < first + steps:
        loop.iterate()
    seconds = time.perf_counter() - started
    return seconds, [after - earlier for after, earlier in zip(channel.tokens, before, strict=True)]


def _ignore_progress(done_bytes: int, total_bytes: int) -> None:
    """The null backend has no weights."""


def _submits(count: int, sampling: SamplingParams, grammar: Grammar | None = None, first: int = 0) -> list[Submit]:
    return [
        Submit(first + number, pack_ids([100 + number, 7]), 2000, sampling, ignore_eos=True, grammar=grammar)
        for number in range(count)
    ]


def _parameters(folder: Path) -> tuple[float, float]:
    samples: dict[str, list[float]] = {"neutral": [], "every": []}
    for _ in range(ROUNDS):
        for name, sampling in (("neutral", SamplingParams()), ("every", EVERY_RULE)):
            seconds, _ = _run(folder, _submits(ROWS, sampling), NullCosts(), STEPS)
            samples[name].append(seconds / STEPS * 1000)
    return statistics.median(samples["neutral"]), statistics.median(samples["every"])


def _neighbours(folder: Path, vocabulary: Vocabulary) -> tuple[float, float, float]:
    constraints = Constraints(Plugins.discover().choose_grammar_engine("llguidance"), vocabulary)
    constraints.wait_open()
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(LONG_SCHEMA))
    costs = NullCosts(step_ms=STEP_MS)
    alone, beside, constrained = [], [], []
    for _ in range(ROUNDS):
        free = _submits(FREE, SamplingParams())
        for other, rates in ((None, alone), (grammar, beside)):
            others = _submits(CONSTRAINED, SamplingParams(), other, first=FREE)
            seconds, tokens = _run(folder, free + others, costs, NEIGHBOUR_STEPS, constraints)
            rates.append(sum(tokens[:FREE]) / seconds)
            if other is not None:
                constrained.append(sum(tokens[FREE:]) / seconds)
    constraints.close()
    return statistics.median(alone), statistics.median(beside), statistics.median(constrained)


@click.command()
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write the report there.")
def main(output: Path | None) -> None:
    """Measure and compare with the targets."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vocabulary = synthetic_tokenizer(folder)
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": VOCAB_SIZE}))
        neutral_ms, every_ms = _parameters(folder)
        alone, beside, constrained = _neighbours(folder, vocabulary)
    report = Report(neutral_ms, every_ms, alone, beside, constrained, 1 - beside / alone)
    added_ms = every_ms - neutral_ms
    print(f"{ROWS} requests, neutral parameters: {neutral_ms:.2f} ms a step")
    print(f"{ROWS} requests, every rule on:      {every_ms:.2f} ms a step, {added_ms:+.2f} (at most {MOST_MS_A_STEP})")
    print(f"{FREE} free requests beside free ones: {alone:,.0f} tokens/s")
    print(
        f"{FREE} beside {CONSTRAINED} constrained: {beside:,.0f} tokens/s, {report.loss:+.1%} (at most {MOST_LOSS:.0%})"
    )
    print(f"the constrained ones: {constrained:,.0f} tokens/s")
    if output is not None:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")


if __name__ == "__main__":
    main()
