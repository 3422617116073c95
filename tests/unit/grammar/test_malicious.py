"""Constraints meant to use up a server are refused or done in time, and nobody else notices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pytest

from tests.support.constrained import allowed_ids
from tests.support.malicious_grammars import MALICIOUS
from tgi_core.errors import ValidationError
from tgi_core.requests.grammar import MAX_GRAMMAR_BYTES, read_grammar
from tgi_core.sampling.grammar import Constraints, Grammar, GrammarCompiler, GrammarEngine, GrammarKind, Vocabulary
from tgi_core.sampling.grammar.checker import DEFAULT_DEADLINE_S, GrammarChecker

MARGIN_S = 3.0
"""What a busy machine may add: a place in the line of two, the fork, the way there and back."""
TOKENS = 40
QUICK = (
    "nested repeats",
    "backtracking",
    "huge bound",
    "exponential automaton",
    "parentheses",
    "very deep schema",
    "anyOf inside anyOf",
    "references of references",
    "huge number",
    "endless reference",
    "left recursion",
    "negations",
)


async def outcome(checker: GrammarChecker, grammar: Grammar) -> tuple[float, Grammar | None]:
    """How long a check took, and what is to be compiled; None for one that is refused."""
    started = time.monotonic()
    accepted = None
    with suppress(ValidationError):
        accepted = await checker.check(grammar)
    return time.monotonic() - started, accepted


def check_all(vocabulary: Vocabulary, names: Sequence[str]) -> dict[str, Grammar]:
    """Check the grammars one after the other, others beside them. Returns those that pass."""

    async def check() -> dict[str, Grammar]:
        checker = GrammarChecker("llguidance", vocabulary)
        passed = {}
        try:
            await checker.check(Grammar(GrammarKind.REGEX, "opened"))
            for number, name in enumerate(names):
                (seconds, accepted), (_, other) = await asyncio.gather(
                    outcome(checker, MALICIOUS[name]), outcome(checker, Grammar(GrammarKind.REGEX, f"good{number}"))
                )
                assert seconds < DEFAULT_DEADLINE_S + MARGIN_S, name
                assert other is not None, name
                if accepted is not None:
                    passed[name] = accepted
        finally:
            await checker.close()
        return passed

    return asyncio.run(check())


def walk(compiler: GrammarCompiler, vocabulary: Vocabulary, grammar: Grammar, name: str) -> None:
    """Go on under the masks until the end, an error or ``TOKENS``: each mask is bounded by the engine's own limits."""
    matcher = compiler.compile(grammar)
    rng = np.random.default_rng(3)
    for _ in range(TOKENS):
        masks = np.empty((1, vocabulary.mask_words), np.int32)
        started = time.monotonic()
        compiler.fill_masks([matcher], masks)
        assert time.monotonic() - started < 1.0, name
        if matcher.error:
            return
        token_id = int(rng.choice(allowed_ids(compiler, matcher, vocabulary)))
        if token_id in vocabulary.eos_token_ids or not matcher.accept(token_id):
            return


@pytest.mark.parametrize(
    "names",
    [pytest.param(QUICK, id="some"), pytest.param(tuple(MALICIOUS), id="all", marks=pytest.mark.slow)],
)
def test_each_is_refused_or_done_in_time_and_bounded_later(
    demo: Vocabulary, demo_compiler: GrammarCompiler, names: tuple[str, ...]
) -> None:
    passed = check_all(demo, names)
    assert 0 < len(passed) < len(names)
    assert not {"very deep schema", "endless reference", "parentheses", "huge number"} & passed.keys()
    for name, grammar in passed.items():
        walk(demo_compiler, demo, grammar, name)


def test_what_is_too_long_is_refused_before_it_is_looked_at() -> None:
    properties = {f"p{number}": {"type": "string"} for number in range(400_000)}
    started = time.monotonic()
    with pytest.raises(ValidationError, match=r"`grammar\.value` must have at most 1048576 bytes"):
        read_grammar("grammar", {"type": "json", "value": {"properties": properties}})
    for kind in ("json", "regex", "ebnf"):
        with pytest.raises(ValidationError, match="at most"):
            read_grammar("grammar", {"type": kind, "value": "a" * (MAX_GRAMMAR_BYTES + 1)})
    assert time.monotonic() - started < 1.0


def test_compiling_does_not_hold_the_interpreter(engine: GrammarEngine, demo: Vocabulary) -> None:
    """So the engine's loop goes on while a large schema is compiled beside it."""
    constraints = Constraints(engine, demo)
    assert constraints.wait_open() == ""
    future = constraints.prepare(MALICIOUS["anyOf inside anyOf"])
    ticks = 0
    while not future.done():
        time.sleep(0.001)
        ticks += 1
    future.result()
    assert ticks > 20
    constraints.close()
