"""Matchers and masks in the engine process: made on threads, each row ready by itself."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.constrained import allowed_ids
from tgi_core.errors import StartupError
from tgi_core.sampling.grammar import (
    Constraints,
    Grammar,
    GrammarCompiler,
    GrammarEngine,
    GrammarError,
    GrammarKind,
    Matcher,
    Vocabulary,
)
from tgi_core.sampling.grammar.constraints import BATCH_ROWS, COMPILED_GRAMMARS, MASK_THREADS

TIMEOUT_S = 20.0


def regex(source: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, source)


class GatedMatcher(Matcher):
    """Allows the one token that its grammar names, plus the number of tokens before."""

    def __init__(self, source: str, position: int = 0) -> None:
        self.source = source
        self.position = position
        self.failure = ""

    def accept(self, token_id: int) -> bool:
        self.position += 1
        return True

    @property
    def error(self) -> str:
        return self.failure

    @property
    def is_complete(self) -> bool:
        return False

    def copy(self) -> GatedMatcher:
        return GatedMatcher(self.source, self.position)


class GatedEngine(GrammarEngine, GrammarCompiler):
    """An engine whose work waits until the test lets it go on."""

    name = "gated"

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.batches: list[list[str]] = []
        self.closed = False
        self.may_open = threading.Event()
        self.gates: dict[str, threading.Event] = {}

    def open(self, vocabulary: Vocabulary) -> GrammarCompiler:
        self.may_open.wait(TIMEOUT_S)
        return self

    def compile(self, grammar: Grammar) -> Matcher:
        self.compiled.append(grammar.source)
        if grammar.source == "refuse":
            raise GrammarError("no")
        if grammar.source == "break":
            raise ZeroDivisionError("oops")
        return GatedMatcher(grammar.source)

    def fill_masks(self, matchers: Sequence[Matcher], masks: NDArray[np.int32]) -> None:
        gated = [matcher for matcher in matchers if isinstance(matcher, GatedMatcher)]
        self.batches.append([matcher.source for matcher in gated])
        for row, matcher in enumerate(gated):
            if matcher.source in self.gates:
                assert self.gates[matcher.source].wait(TIMEOUT_S)
            if matcher.source == "explode":
                raise ZeroDivisionError("oops")
            if matcher.source == "fail":
                matcher.failure = "too complex"
            masks[row] = 0
            masks[row, 0] = 1 << matcher.position

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def gated() -> GatedEngine:
    return GatedEngine()


@pytest.fixture
def constraints(gated: GatedEngine) -> Iterator[Constraints]:
    made = Constraints(gated, Vocabulary(Path("none"), 70, (1,)))
    gated.may_open.set()
    yield made
    for gate in gated.gates.values():
        gate.set()
    made.close()
    assert gated.closed


def result(future: Future[Matcher]) -> Matcher:
    return future.result(TIMEOUT_S)


def words(masks: bytes) -> list[list[int]]:
    return np.frombuffer(masks, np.int32).reshape(-1, 3).tolist()


def test_one_grammar_is_compiled_once_and_copied(constraints: Constraints, gated: GatedEngine) -> None:
    first, second = result(constraints.prepare(regex("a"))), result(constraints.prepare(regex("a")))
    assert gated.compiled == ["a"]
    assert first.accept(5)
    job = constraints.start_masks([first, second])
    assert job.wait(TIMEOUT_S)
    assert words(job.masks([0, 1])) == [[2, 0, 0], [1, 0, 0]]


def test_the_grammars_used_last_are_kept(constraints: Constraints, gated: GatedEngine) -> None:
    for number in range(COMPILED_GRAMMARS):
        result(constraints.prepare(regex(str(number))))
    result(constraints.prepare(regex("0")))
    result(constraints.prepare(regex("one more")))
    gated.compiled.clear()
    for source in ("0", "one more", str(COMPILED_GRAMMARS - 1), "1"):
        result(constraints.prepare(regex(source)))
    assert gated.compiled == ["1"]


def test_a_grammar_that_fails_fails_its_requests_alone(constraints: Constraints) -> None:
    with pytest.raises(GrammarError, match="no"):
        result(constraints.prepare(regex("refuse")))
    with pytest.raises(GrammarError, match="the grammar engine failed: ZeroDivisionError: oops"):
        result(constraints.prepare(regex("break")))
    assert result(constraints.prepare(regex("a"))).error == ""


def test_requests_wait_for_the_engine_to_open(gated: GatedEngine) -> None:
    constraints = Constraints(gated, Vocabulary(Path("none"), 70, (1,)))
    futures = [constraints.prepare(regex(str(number))) for number in range(3)]
    time.sleep(0.05)
    assert not any(future.done() for future in futures)
    gated.may_open.set()
    assert constraints.wait_open() == ""
    for future in futures:
        result(future)
    constraints.close()


def test_an_engine_that_does_not_open_refuses_every_request() -> None:
    class Broken(GatedEngine):
        def open(self, vocabulary: Vocabulary) -> GrammarCompiler:
            raise StartupError("There is no library.", "Install it.")

    constraints = Constraints(Broken(), Vocabulary(Path("none"), 70, (1,)))
    assert constraints.wait_open() == "There is no library. Install it."
    with pytest.raises(GrammarError, match="There is no library"):
        result(constraints.prepare(regex("a")))
    constraints.close()


def test_a_slow_mask_does_not_hold_up_the_others(constraints: Constraints, gated: GatedEngine) -> None:
    gated.gates["slow"] = threading.Event()
    matchers = [result(constraints.prepare(regex("slow" if row == 9 else str(row)))) for row in range(40)]
    job = constraints.start_masks(matchers)
    assert not job.wait(0.2)
    ready = job.ready_rows()
    assert 9 not in ready
    assert len(ready) >= 40 - BATCH_ROWS
    assert words(job.masks(ready)) == [[1, 0, 0]] * len(ready)

    # The others go on; the slow row is asked for again, and is not begun a second time.
    num_batches = len(gated.batches)
    for row in ready:
        assert matchers[row].accept(3)
    again = constraints.start_masks(matchers)
    assert not again.wait(0.2)
    assert again.ready_rows() == ready
    gated.gates["slow"].set()
    assert again.wait(TIMEOUT_S)
    assert [word for word, _, _ in words(again.masks(range(40)))] == [2 if row in ready else 1 for row in range(40)]
    assert sum("slow" in batch for batch in gated.batches[num_batches:]) == 0


def test_several_slow_masks_leave_threads_for_others(constraints: Constraints, gated: GatedEngine) -> None:
    slow = [f"slow {number}" for number in range(MASK_THREADS - 1)]
    gated.gates |= {source: threading.Event() for source in slow}
    held = [constraints.start_masks([result(constraints.prepare(regex(source)))]) for source in slow]
    quick = constraints.start_masks([result(constraints.prepare(regex("quick")))])
    assert quick.wait(TIMEOUT_S)
    assert [job.ready_rows() for job in held] == [[]] * len(held)


def test_a_mask_is_kept_until_a_token_is_accepted(constraints: Constraints, gated: GatedEngine) -> None:
    matcher = result(constraints.prepare(regex("a")))
    for _ in range(3):
        assert constraints.start_masks([matcher]).wait(TIMEOUT_S)
    assert len(gated.batches) == 1
    assert matcher.accept(1)
    assert constraints.start_masks([matcher]).wait(TIMEOUT_S)
    assert len(gated.batches) == 2


def test_wait_any_returns_with_the_first(constraints: Constraints, gated: GatedEngine) -> None:
    gated.gates["slow"] = threading.Event()
    slow, quick = result(constraints.prepare(regex("slow"))), result(constraints.prepare(regex("quick")))
    constraints.start_masks([slow])
    job = constraints.start_masks([slow, quick])
    job.wait_any()
    assert job.ready_rows() == [1]


def test_a_matcher_that_fails_over_its_mask_says_so(constraints: Constraints) -> None:
    matchers = [result(constraints.prepare(regex(source))) for source in ("a", "fail", "b")]
    job = constraints.start_masks(matchers)
    assert job.wait(TIMEOUT_S)
    assert [matcher.error for matcher in matchers] == ["", "too complex", ""]
    assert words(job.masks([0, 2])) == [[1, 0, 0], [1, 0, 0]]


def test_an_engine_that_breaks_over_masks_is_not_waited_for(constraints: Constraints) -> None:
    broken = result(constraints.prepare(regex("explode")))
    assert constraints.start_masks([broken]).wait(TIMEOUT_S)
    assert broken.error == "the grammar engine failed: ZeroDivisionError: oops"
    good = result(constraints.prepare(regex("a")))
    assert constraints.start_masks([good]).wait(TIMEOUT_S)
    assert good.error == ""


def test_matchers_from_elsewhere_are_no_rows(constraints: Constraints) -> None:
    with pytest.raises(TypeError, match="GatedMatcher"):
        constraints.start_masks([GatedMatcher("a")])


def test_no_rows_are_ready_at_once(constraints: Constraints) -> None:
    job = constraints.start_masks([])
    assert job.wait(0.0)
    assert (job.ready_rows(), job.masks([])) == ([], b"")


def test_real_masks_are_those_of_the_compiler(
    engine: GrammarEngine, compiler: GrammarCompiler, byte_level: Vocabulary
) -> None:
    constraints = Constraints(engine, byte_level)
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "integer"}}}
    grammars = [Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)), regex("[a-c]+"), regex("x|yy")]
    matchers = [result(constraints.prepare(grammars[row % 3])) for row in range(30)]
    plain = [compiler.compile(grammars[row % 3]) for row in range(30)]
    rng = np.random.default_rng(5)
    for _ in range(6):
        job = constraints.start_masks(matchers)
        assert job.wait(TIMEOUT_S)
        masks = np.frombuffer(job.masks(range(len(matchers))), np.uint8).reshape(len(matchers), -1)
        going_on = []
        for row, mask in enumerate(masks):
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
            assert allowed.tolist() == allowed_ids(compiler, plain[row], byte_level).tolist()
            token_id = int(rng.choice(allowed))
            if token_id not in byte_level.eos_token_ids:
                assert matchers[row].accept(token_id)
                assert plain[row].accept(token_id)
                assert matchers[row].is_complete == plain[row].is_complete
                going_on.append(row)
        matchers, plain = [matchers[row] for row in going_on], [plain[row] for row in going_on]
    constraints.close()
