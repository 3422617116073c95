"""The helper process that tests constraints: whatever happens in a test happens to that test alone."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from tests.support.plugins import write_distribution
from tests.support.stub_grammar_engine import STUB_ENGINE
from tgi_core.errors import EngineUnavailableError, RequestError, ValidationError
from tgi_core.sampling.grammar import Grammar, GrammarError, GrammarKind, Vocabulary
from tgi_core.sampling.grammar.checker import CACHE_BYTES, GrammarChecker

DEADLINE_S = 0.5
STUB_VOCABULARY = Vocabulary(Path("none"), 100, (1,))


def regex(source: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, source)


def schema(value: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


@pytest.fixture
def stub(site: Path) -> Callable[[], GrammarChecker]:
    write_distribution(site, "tgi-stub", "tgi_stub", STUB_ENGINE)
    return lambda: GrammarChecker("stub", STUB_VOCABULARY, deadline_s=DEADLINE_S, memory_bytes=64 << 20)


def run(checker: GrammarChecker, *steps: Callable[[GrammarChecker], Awaitable[None]]) -> None:
    async def all_steps() -> None:
        try:
            for step in steps:
                await step(checker)
        finally:
            await checker.close()

    asyncio.run(all_steps())
    assert [child for child in psutil.Process().children() if "check_server" in " ".join(child.cmdline())] == []


async def refusal(checker: GrammarChecker, source: str) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await checker.check(regex(source))
    return caught.value


def test_what_is_checked_comes_back_normalized(byte_level: Vocabulary) -> None:
    async def step(checker: GrammarChecker) -> None:
        given = schema({"type": "object", "properties": {"größe": {"uniqueItems": False}}})
        wanted = {"type": "object", "properties": {"größe": {}}, "additionalProperties": False}
        assert json.loads((await checker.check(given)).source) == wanted
        assert await checker.check(regex("a+")) == regex("a+")
        for bad, place in ((schema({"items": {"not": {}}}), "#/items"), (schema({"items": {"type": 1}}), "#/items")):
            with pytest.raises(GrammarError) as caught:
                await checker.check(bad)
            assert caught.value.place == place
        with pytest.raises(GrammarError, match="unclosed group"):
            await checker.check(regex("("))

    run(GrammarChecker("llguidance", byte_level), step)


def test_a_test_that_takes_too_long_is_refused_at_its_deadline(stub: Callable[[], GrammarChecker]) -> None:
    async def step(checker: GrammarChecker) -> None:
        await checker.check(regex("first"))
        for source in ("spin", "sleep 60"):
            started = time.monotonic()
            error = await refusal(checker, source)
            assert time.monotonic() - started >= DEADLINE_S
            assert isinstance(error, GrammarError)
            assert "more than 0.5 s" in error.reason

    run(stub(), step)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("eat", "more than 64 MiB"),
        ("abort", "nested too deep"),
        ("recurse", "nested too deep"),
        ("raise", "fails: ValueError: a bug"),
        ("refuse", "not like this"),
    ],
)
def test_a_test_that_dies_is_refused_and_the_next_one_goes_on(
    stub: Callable[[], GrammarChecker], source: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def step(checker: GrammarChecker) -> None:
        error = await refusal(checker, source)
        assert isinstance(error, GrammarError)
        assert reason in error.reason
        await checker.check(regex("next"))

    run(stub(), step)
    assert "last words" not in capfd.readouterr().err


def test_explosive_constraints_do_not_make_others_fail(stub: Callable[[], GrammarChecker]) -> None:
    async def step(checker: GrammarChecker) -> None:
        bad = [asyncio.create_task(refusal(checker, f"spin {number}")) for number in range(3)]
        good = [asyncio.create_task(checker.check(regex(f"good {number}"))) for number in range(20)]
        longest_gap, last = 0.0, time.monotonic()
        while not all(task.done() for task in (*bad, *good)):
            await asyncio.sleep(0.01)
            longest_gap, last = max(longest_gap, time.monotonic() - last), time.monotonic()
        assert [task.result().source for task in good] == [f"good {number}" for number in range(20)]
        assert all("complex" in str(task.result()) for task in bad)
        assert longest_gap < DEADLINE_S, "the event loop was held up"

    run(stub(), step)


def test_verdicts_are_remembered_and_shared(stub: Callable[[], GrammarChecker]) -> None:
    async def step(checker: GrammarChecker) -> None:
        with pytest.raises(GrammarError):
            await checker.check(regex("spin"))
        started = time.monotonic()
        with pytest.raises(GrammarError):
            await checker.check(regex("spin"))
        assert time.monotonic() - started < DEADLINE_S / 2
        # Eight at once are one test, not four rounds of two.
        started = time.monotonic()
        await asyncio.gather(*(checker.check(regex("sleep 0.3")) for _ in range(8)))
        assert time.monotonic() - started < 0.9

    run(stub(), step)


def test_what_is_remembered_is_bounded(stub: Callable[[], GrammarChecker]) -> None:
    async def step(checker: GrammarChecker) -> None:
        for number in range(3):
            await checker.check(regex(f"large {number}" + "x" * (CACHE_BYTES // 4)))
        before = await parent(checker)
        assert await parent(checker) == before
        # The latest is still known: asking for it makes no test, so it works without a helper.
        os.kill(before, signal.SIGKILL)
        await checker.check(regex("large 2" + "x" * (CACHE_BYTES // 4)))

    run(stub(), step)


async def parent(checker: GrammarChecker) -> int:
    """The helper's process id."""
    error = await refusal(checker, f"parent {time.monotonic_ns()}")
    assert isinstance(error, GrammarError)
    return int(error.reason)


def test_a_client_that_leaves_takes_nothing_from_others(stub: Callable[[], GrammarChecker]) -> None:
    async def step(checker: GrammarChecker) -> None:
        leaver = asyncio.create_task(checker.check(regex("sleep 0.2")))
        stayer = asyncio.create_task(checker.check(regex("sleep 0.2")))
        await asyncio.sleep(0.1)
        leaver.cancel()
        assert await stayer == regex("sleep 0.2")

    run(stub(), step)


def test_a_helper_that_is_killed_is_replaced(stub: Callable[[], GrammarChecker]) -> None:
    async def step(checker: GrammarChecker) -> None:
        helper = await parent(checker)
        pending = asyncio.create_task(checker.check(regex("sleep 0.2")))
        await asyncio.sleep(0.05)
        os.kill(helper, signal.SIGKILL)
        assert await pending == regex("sleep 0.2")
        assert await parent(checker) != helper

    run(stub(), step)


def test_a_helper_that_hangs_is_killed_and_replaced(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_distribution(site, "tgi-stub", "tgi_stub", STUB_ENGINE)
    checker = GrammarChecker("stub", STUB_VOCABULARY, deadline_s=DEADLINE_S, hang_margin_s=0.2)

    async def step(checker: GrammarChecker) -> None:
        helper = await parent(checker)
        running = asyncio.create_task(checker.check(regex("sleep 0.3")))
        await asyncio.sleep(0.1)
        os.killpg(helper, signal.SIGSTOP)
        started = time.monotonic()
        assert await asyncio.gather(*(checker.check(regex(f"good {number}")) for number in range(3)))
        assert time.monotonic() - started >= DEADLINE_S
        assert await running == regex("sleep 0.3")
        assert await parent(checker) != helper

    run(checker, step)
    assert [record.message for record in caplog.records] == [
        "The helper that tests grammars says nothing for 0.7 s; it is killed."
    ]


def test_a_long_line_of_tests_is_no_hang(site: Path) -> None:
    write_distribution(site, "tgi-stub", "tgi_stub", STUB_ENGINE)
    checker = GrammarChecker("stub", STUB_VOCABULARY, deadline_s=DEADLINE_S, hang_margin_s=0.3)

    async def step(checker: GrammarChecker) -> None:
        helper = await parent(checker)
        slow = [asyncio.create_task(refusal(checker, f"spin {number}")) for number in range(6)]
        assert all("complex" in str(error) for error in await asyncio.gather(*slow))
        assert await parent(checker) == helper

    run(checker, step)


def test_closing_does_not_wait_for_a_helper_that_hangs(
    stub: Callable[[], GrammarChecker], caplog: pytest.LogCaptureFixture
) -> None:
    async def step(checker: GrammarChecker) -> None:
        helper = await parent(checker)
        os.killpg(helper, signal.SIGSTOP)
        pending = asyncio.create_task(checker.check(regex("a")))
        left = asyncio.create_task(checker.check(regex("b")))
        await asyncio.sleep(0.05)
        left.cancel()
        started = time.monotonic()
        await checker.close()
        assert time.monotonic() - started < 4
        with pytest.raises(EngineUnavailableError):
            await pending

    run(stub(), step)
    gc.collect()
    assert caplog.records == []


def test_closing_does_not_wait_for_a_helper_that_hangs_while_it_starts(site: Path) -> None:
    write_distribution(site, "tgi-stub", "tgi_stub", STUB_ENGINE)

    async def step(checker: GrammarChecker) -> None:
        # Servers that other tests use are children too.
        others = psutil.Process().children()
        pending = asyncio.create_task(checker.check(regex("a")))
        # Long enough to be there, and not for Python to be up.
        await asyncio.sleep(0.05)
        (helper,) = (child for child in psutil.Process().children() if child not in others)
        helper.suspend()
        started = time.monotonic()
        await checker.close()
        assert time.monotonic() - started < 4
        with pytest.raises(EngineUnavailableError):
            await pending

    run(GrammarChecker("stub", STUB_VOCABULARY), step)


def test_an_engine_that_cannot_be_used_is_said_to_everyone(site: Path) -> None:
    write_distribution(site, "tgi-stub", "tgi_stub", STUB_ENGINE)

    async def step(checker: GrammarChecker) -> None:
        for _ in range(2):
            with pytest.raises(ValidationError, match=r"not available: The vocabulary is empty\. Fill it\."):
                await checker.check(regex("a"))

    run(GrammarChecker("stub", Vocabulary(Path("none"), 0, (1,))), step)

    async def unknown(checker: GrammarChecker) -> None:
        with pytest.raises(ValidationError, match="no grammar engine `nope`; installed are: llguidance, stub"):
            await checker.check(regex("a"))

    run(GrammarChecker("nope", STUB_VOCABULARY), unknown)

    async def dies(checker: GrammarChecker) -> None:
        for _ in range(2):
            with pytest.raises(EngineUnavailableError, match="does not start"):
                await checker.check(regex("a"))

    run(GrammarChecker("stub", Vocabulary(Path("none"), 1, (1,))), dies)


def test_closing_ends_what_is_still_running(stub: Callable[[], GrammarChecker]) -> None:
    async def step(checker: GrammarChecker) -> None:
        helper = psutil.Process(await parent(checker))
        pending = asyncio.create_task(checker.check(regex("sleep 0.4")))
        await asyncio.sleep(0.1)
        tests = helper.children()
        assert tests
        await checker.close()
        with pytest.raises(EngineUnavailableError):
            await pending
        assert not helper.is_running()
        assert psutil.wait_procs(tests, timeout=5)[1] == []
        with pytest.raises(EngineUnavailableError):
            await checker.check(regex("b"))

    run(stub(), step)


def test_the_helper_ends_with_its_parent(site: Path) -> None:
    write_distribution(site, "tgi-stub", "tgi_stub", STUB_ENGINE)
    source = dedent("""
        import asyncio, os, signal
        from pathlib import Path
        from tgi_core.sampling.grammar import *
        from tgi_core.sampling.grammar.checker import GrammarChecker

        async def main():
            checker = GrammarChecker("stub", Vocabulary(Path("none"), 100, (1,)), deadline_s=30)
            try:
                await checker.check(Grammar(GrammarKind.REGEX, "parent"))
            except GrammarError as error:
                print(error.reason, flush=True)
            asyncio.create_task(checker.check(Grammar(GrammarKind.REGEX, "spin")))
            await asyncio.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
    """)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while psutil.pid_exists(int(done.stdout)):
        assert time.monotonic() < deadline, "the helper lives on"
        time.sleep(0.05)


def test_tests_have_one_thread_to_fork_from(byte_level: Vocabulary, tmp_path: Path) -> None:
    async def step(checker: GrammarChecker) -> None:
        await checker.check(regex("a"))
        helpers = [child for child in psutil.Process().children() if "check_server" in " ".join(child.cmdline())]
        assert [helper.num_threads() for helper in helpers] == [1]

    run(GrammarChecker("llguidance", byte_level), step)
