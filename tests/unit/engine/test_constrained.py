"""Constrained requests in the loop: masks come late, some too late, and none of it is felt by the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.engines import VOCAB_SIZE, WORKER, TestEngine, write_null_model
from tgi_core.contract import KVBudget, ShardLimits, ShardSpec, StepPlan, Ticket
from tgi_core.engine.frames import Cancel, Finish, Submit, pack_ids
from tgi_core.errors import ValidationError
from tgi_core.sampling import SamplingParams
from tgi_core.sampling.grammar import Grammar, GrammarKind, Matcher
from tgi_core.testing.null_backend import NullCosts, NullShard

EOS = 2
WORDS = -(-VOCAB_SIZE // 32)


class Countdown(Matcher):
    """Allows the tokens 100, 101, ... and then only the end."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.accepted: list[int] = []
        self.failure = ""

    @property
    def allowed(self) -> int:
        return EOS if self.is_complete else 100 + len(self.accepted)

    def accept(self, token_id: int) -> bool:
        if token_id != self.allowed:
            self.failure = f"{token_id} is not {self.allowed}"
            return False
        self.accepted.append(token_id)
        return True

    @property
    def error(self) -> str:
        return self.failure

    @property
    def is_complete(self) -> bool:
        return len(self.accepted) >= self.length

    def copy(self) -> Matcher:
        return Countdown(self.length)


class Job:
    """Masks of some rows, ready as the test says."""

    def __init__(self, matchers: Sequence[Matcher], ready: list[int]) -> None:
        self._matchers = matchers
        self._ready = ready
        self.waited_for_any = False

    def wait(self, timeout_s: float) -> bool:
        return len(self._ready) == len(self._matchers)

    def wait_any(self) -> None:
        self.waited_for_any = True
        self._ready = self._ready or [0]

    def ready_rows(self) -> list[int]:
        return self._ready

    def masks(self, rows: Sequence[int]) -> bytes:
        masks = b""
        for row in rows:
            matcher = self._matchers[row]
            assert isinstance(matcher, Countdown)
            masks += (1 << matcher.allowed).to_bytes(4 * WORDS, "little")
        return masks


class FakeConstraints:
    """Matchers at once or when the test says; masks as ``readiness(step, rows)`` says."""

    def __init__(self, readiness: Callable[[int, int], list[int]] = lambda step, rows: list(range(rows))) -> None:
        self.readiness = readiness
        self.jobs: list[Job] = []
        self.futures: list[Future[Matcher]] = []
        self.matchers: list[Countdown] = []
        self.holds = False

    def prepare(self, grammar: Grammar) -> Future[Matcher]:
        future: Future[Matcher] = Future()
        self.futures.append(future)
        if grammar.source == "bad":
            future.set_exception(ValidationError("it is bad"))
        elif not self.holds:
            self.release(future, int(grammar.source))
        return future

    def release(self, future: Future[Matcher], length: int) -> None:
        self.matchers.append(Countdown(length))
        future.set_result(self.matchers[-1])

    def start_masks(self, matchers: Sequence[Matcher]) -> Job:
        self.jobs.append(Job(matchers, self.readiness(len(self.jobs), len(matchers))))
        return self.jobs[-1]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return write_null_model(tmp_path / "model")


def constrain(
    engine: TestEngine, number: int, source: str, *, max_new_tokens: int = 20, ignore_eos: bool = False
) -> None:
    engine.channel.inbox.append(
        (
            WORKER,
            Submit(
                number,
                pack_ids([5, 6, 7]),
                max_new_tokens,
                SamplingParams(),
                ignore_eos,
                Grammar(GrammarKind.REGEX, source),
            ),
        )
    )


def wanted(length: int) -> list[int]:
    return [*range(100, 100 + length), EOS]


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_every_token_matches_and_the_end_is_an_eos(model_dir: Path, run_ahead: int) -> None:
    engine = TestEngine(model_dir, run_ahead=run_ahead, constraints=FakeConstraints())
    for number in range(4):
        constrain(engine, number, str(3 + number), ignore_eos=number == 2)
    constrain(engine, 4, "30", max_new_tokens=6)
    engine.run_until_idle()
    assert engine.tokens() == {number: wanted(3 + number) for number in range(4)} | {4: [*range(100, 106)]}
    assert engine.finishes() == dict.fromkeys(range(4), Finish.EOS) | {4: Finish.LENGTH}


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_rows_whose_masks_are_late_sit_out_and_the_others_go_on(model_dir: Path, run_ahead: int) -> None:
    alone = TestEngine(model_dir)
    alone.submit(9, [8, 9], 12)
    alone.run_until_idle()
    constraints = FakeConstraints(lambda step, rows: [row for row in range(rows) if (step + row) % 3 == 0])
    engine = TestEngine(model_dir, run_ahead=run_ahead, constraints=constraints)
    engine.submit(9, [8, 9], 12)
    for number in range(3):
        constrain(engine, number, "5")
    engine.run_until_idle()
    tokens = engine.tokens()
    assert tokens.pop(9) == alone.tokens()[9]
    assert tokens == {number: wanted(5) for number in range(3)}
    steps_of_the_free = [frame.step for frame in engine.frames() if 9 in list(memoryview(frame.request_ids).cast("Q"))]
    assert steps_of_the_free == list(range(1, 13)), "it got a token in every step"
    assert engine.scheduler.kv.main_pool.num_used == 0


class StatefulShard(NullShard):
    """Slots keep a state, in which each token may be counted once."""

    def warm_up(self, limits: ShardLimits) -> KVBudget:
        self.computed: dict[tuple[int, int], int] = {}
        return replace(super().warm_up(limits), has_states=True)

    def launch(self, plan: StepPlan) -> Ticket:
        for slot, epoch, q_len, kv_len in zip(plan.slots, plan.epochs, plan.q_lens, plan.kv_lens, strict=True):
            assert kv_len - q_len == self.computed.get((slot, epoch), 0), "a token was computed twice, or left out"
            self.computed[slot, epoch] = kv_len
        return super().launch(plan)


class PatientJob(Job):
    """Masks that take a minute."""

    def wait(self, timeout_s: float) -> bool:
        if timeout_s > 60:
            self._ready = list(range(len(self._matchers)))
        return super().wait(timeout_s)


class SlowConstraints(FakeConstraints):
    """Makes such masks."""

    def start_masks(self, matchers: Sequence[Matcher]) -> Job:
        self.jobs.append(PatientJob(matchers, [0]))
        return self.jobs[-1]


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_rows_with_a_state_wait_for_their_masks(model_dir: Path, run_ahead: int) -> None:
    shard = StatefulShard(ShardSpec(model_dir=model_dir, dtype="float32"), NullCosts())
    engine = TestEngine(model_dir, shard=shard, run_ahead=run_ahead, constraints=SlowConstraints())
    engine.submit(9, [8, 9], 12)
    for number in range(3):
        constrain(engine, number, "5")
    engine.run_until_idle()
    tokens = engine.tokens()
    assert len(tokens.pop(9)) == 12
    assert tokens == {number: wanted(5) for number in range(3)}


def test_a_step_of_nothing_but_late_rows_waits_for_one(model_dir: Path) -> None:
    constraints = FakeConstraints(lambda step, rows: [])
    engine = TestEngine(model_dir, constraints=constraints)
    constrain(engine, 1, "4")
    engine.run_until_idle()
    assert engine.tokens() == {1: wanted(4)}
    assert all(job.waited_for_any for job in constraints.jobs)


def test_a_grammar_that_cannot_be_prepared_fails_its_request_alone(model_dir: Path) -> None:
    engine = TestEngine(model_dir, constraints=FakeConstraints())
    constrain(engine, 1, "bad")
    constrain(engine, 2, "2")
    engine.run_until_idle()
    assert [(failure.request_id, failure.message) for failure in engine.failures()] == [(1, "it is bad")]
    assert engine.tokens() == {2: wanted(2)}


def test_a_server_without_grammars_refuses_one(model_dir: Path) -> None:
    engine = TestEngine(model_dir)
    constrain(engine, 1, "2")
    engine.run_until_idle()
    assert [failure.request_id for failure in engine.failures()] == [1]


def test_a_matcher_that_fails_ends_its_request_alone(model_dir: Path) -> None:
    constraints = FakeConstraints()
    engine = TestEngine(model_dir, constraints=constraints)
    for number in (1, 2, 3):
        constrain(engine, number, "6")
    engine.submit(9, [8, 9], 12)
    for _ in range(4):
        engine.loop.iterate()
    constraints.matchers[0].failure = "out of fuel"
    constraints.matchers[1].accepted.append(0)  # it expects another token than the one that is on its way
    engine.run_until_idle()
    assert {failure.request_id for failure in engine.failures()} == {1, 2}
    assert any("out of fuel" in failure.message for failure in engine.failures())
    assert engine.tokens()[3] == wanted(6)
    assert len(engine.tokens()[9]) == 12
    assert engine.scheduler.kv.main_pool.num_used == 0


def test_other_requests_run_while_a_matcher_is_made(model_dir: Path) -> None:
    constraints = FakeConstraints()
    constraints.holds = True
    engine = TestEngine(model_dir, constraints=constraints)
    constrain(engine, 1, "2")
    constrain(engine, 2, "2")
    engine.submit(9, [8, 9], 5)
    engine.run_until_idle()
    assert set(engine.tokens()) == {9}
    engine.channel.inbox.append((WORKER, Cancel(2)))
    for future in constraints.futures:
        constraints.release(future, 2)
    engine.loop.iterate()
    engine.run_until_idle()
    assert engine.tokens()[1] == wanted(2)
    assert 2 not in engine.tokens(), "it was given up while its matcher was made"
