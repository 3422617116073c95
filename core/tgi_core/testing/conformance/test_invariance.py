"""Level shard: a reply does not depend on how it is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from tgi_core.testing.conformance.comparison import ConformanceError
from tgi_core.testing.conformance.models import model_configs, write_checkpoint
from tgi_core.testing.conformance.oracle import check_same
from tgi_core.testing.conformance.refusal import may_refuse
from tgi_core.testing.conformance.running import Ask, Reply, Running, make_asks, start
from tgi_core.testing.conformance.subject import Subject
from tgi_core.testing.conformance.tolerance import TOLERANCES
from tgi_core.testing.levels import Level

pytestmark = pytest.mark.tgi_level(Level.SHARD)

_STATES = "qwen3_next"
_MODELS = ("llama", _STATES, "gemma3_text")
"""One KV group, slot states beside one, and a window beside full attention."""

_NEW_TOKENS = 8
_MOST_IDLE_CALLS = 10_000


class Baseline(NamedTuple):
    """A started shard, and what each request gets alone, whole and without running ahead.

    Attributes:
        bound: how far log-probabilities may be off; 0 where the bits must be the same.
    """

    running: Running
    alone: list[Reply]
    bound: float

    @property
    def asks(self) -> list[Ask]:
        """The requests."""
        return [reply.ask for reply in self.alone]

    def check(self, replies: Sequence[Reply], what: str) -> None:
        """Refuse replies that are not those made alone."""
        check_same(replies, self.alone, self.bound, what)


@pytest.fixture(scope="module", params=_MODELS)
def baseline(
    request: pytest.FixtureRequest, subject: Subject, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Baseline]:
    """In the type whose bits are declared to be the same, or else the most exact one."""
    capabilities = subject.capabilities
    if not capabilities.computes:
        pytest.skip(f"backend `{subject.name}` declares that it computes nothing")
    if subject.quick and request.param != _MODELS[-1]:
        pytest.skip("left out by --tgi-quick")
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(folder, model_configs(subject.head_dim)[request.param])
    # Where a chunk ends rounds what goes into a state.
    invariant = capabilities.batch_invariant_dtypes if request.param != _STATES else ()
    dtype = invariant[0] if invariant else subject.exact_dtype
    with may_refuse(subject, f"{request.param} in {dtype}"), start(subject.backend, folder, dtype) as running:
        alone = [running.serve([ask], run_ahead=0)[0] for ask in make_asks(running, num_tokens=_NEW_TOKENS)]
        yield Baseline(running, alone, 0 if invariant else TOLERANCES[dtype].logprob)


def test_neighbours_and_padding(baseline: Baseline) -> None:
    """A step may hold any other rows, and be padded for them."""
    together = baseline.running.serve(baseline.asks, run_ahead=0)
    baseline.check(together, "together with others and alone")
    few = baseline.running.serve(baseline.asks[:3], run_ahead=0)
    check_same(few, baseline.alone[:3], baseline.bound, "in steps of three rows and alone")


def test_other_blocks_and_slots(baseline: Baseline) -> None:
    """The physical blocks of a request may be any."""
    backwards = baseline.running.serve(baseline.asks[::-1], run_ahead=0)
    baseline.check(backwards[::-1], "in other blocks and slots")


@pytest.mark.parametrize("step_tokens", [7, 13])
def test_chunks(baseline: Baseline, step_tokens: int) -> None:
    """A prompt may be computed over several steps."""
    if not baseline.running.chunks_prompts:
        pytest.skip("chunked_prefill is not declared")
    baseline.check(baseline.running.serve(baseline.asks, step_tokens=step_tokens), f"in chunks of {step_tokens}")


def test_running_ahead(baseline: Baseline) -> None:
    """A step may be launched before the tokens of the one before are known."""
    if not baseline.running.capabilities.run_ahead:
        pytest.skip("run_ahead is 0")
    for run_ahead in (0, 1):
        # In other slots than before: what a step reads too early must not be there from the last time.
        asks, turn = baseline.asks, 1 + run_ahead
        replies = baseline.running.serve([*asks[turn:], *asks[:turn]], run_ahead=run_ahead)
        baseline.check([*replies[-turn:], *replies[:-turn]], f"with {run_ahead} steps launched ahead")


def test_decoded_and_computed_again(baseline: Baseline) -> None:
    """What a decode makes, replayed as a graph where there are any, is what a prompt of the same tokens gives."""
    for known in (1, _NEW_TOKENS - 1):
        again = baseline.running.serve(
            [Ask([*reply.ask.prompt, *reply.token_ids[:known]], 1) for reply in baseline.alone]
        )
        for reply, new in zip(baseline.alone, again, strict=True):
            cut = Reply(reply.ask)
            cut.token_ids, cut.logprobs = reply.token_ids[known : known + 1], reply.logprobs[known : known + 1]
            check_same([cut], [new], baseline.bound, f"token {known}, decoded and as part of a prompt")


def test_prefix_hits(baseline: Baseline) -> None:
    """Blocks of an equal beginning may be shared."""
    running = baseline.running
    if not running.capabilities.prefix_cache or running.budget.has_states:
        pytest.skip("prefix_cache is not declared, or the model has states")
    replies = running.serve([*baseline.asks, *baseline.asks], prefix_cache=True)
    baseline.check(replies[: len(baseline.asks)], "offered to the prefix cache")
    shared = replies[len(baseline.asks) :]
    baseline.check(shared, "on blocks that another request has computed")
    if not any(reply.cached_len for reply in shared):
        raise ConformanceError("prefix_cache is declared, and no prompt is long enough to hold a shared block.")


def test_slots_are_used_again(baseline: Baseline) -> None:
    """What the slot's last owner has left changes nothing."""
    running = baseline.running
    count = 3 * running.limits.max_slots
    asks = [baseline.asks[index % len(baseline.asks)] for index in range(count)]
    expected = [baseline.alone[index % len(baseline.asks)] for index in range(count)]
    check_same(running.serve(asks), expected, baseline.bound, "in slots that others had before")


def test_masks(baseline: Baseline) -> None:
    """Only allowed tokens come out, rows that sit a sampling out lose nothing, and others do not notice."""
    running = baseline.running
    allowed = (3, 31, 32, 64, 159)
    asks = [ask._replace(allowed=allowed if index % 2 else None) for index, ask in enumerate(baseline.asks)]
    replies = running.serve(asks)
    for reply in replies[1::2]:
        if not set(reply.token_ids) <= set(allowed):
            raise ConformanceError(f"Of the tokens {allowed} alone are allowed, and {reply.token_ids} came out.")
    check_same(replies[::2], baseline.alone[::2], baseline.bound, "beside rows with masks")
    skipping = running.serve(asks, skip_every=3)
    check_same(skipping, replies, baseline.bound, "with and without sitting out")


def test_idle_time(baseline: Baseline) -> None:
    """What is prepared while nothing is in flight, such as graphs and shapes, changes no reply, and comes to an end."""
    running = baseline.running
    baseline.check(running.serve(baseline.asks, run_ahead=0, idles=True), "with and without idle time between steps")
    for _ in range(_MOST_IDLE_CALLS):
        if not running.shard.use_idle_time():
            break
    else:
        raise ConformanceError(f"use_idle_time says after {_MOST_IDLE_CALLS} calls that more is left to do.")
    baseline.check(running.serve(baseline.asks), "before and after all idle time is used")
    few = running.serve(baseline.asks[:3])
    check_same(few, baseline.alone[:3], baseline.bound, "in steps of three rows after idle time, and alone before it")
