"""The API process's side of testing constraints: asks the helper process, remembers what it said."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from contextlib import suppress

import msgspec

from tgi_core.errors import EngineUnavailableError, ValidationError
from tgi_core.sampling.grammar.check_frames import LENGTH_BYTES, Answer, Check, Frame, Opened, Setup, Verdict, pack
from tgi_core.sampling.grammar.engine import GrammarError, Vocabulary
from tgi_core.sampling.grammar.spec import Grammar

DEFAULT_DEADLINE_S = 2.0
DEFAULT_MEMORY_BYTES = 256 << 20
CACHE_BYTES = 16 << 20
"""Text of the constraints, given and normalized, whose verdicts are remembered."""
HANG_MARGIN_S = 3.0
"""How much longer than a test may take a helper may say nothing, while it has one to do."""
_OPEN_TIMEOUT_S = 120.0
_CLOSE_TIMEOUT_S = 2.0
_CLOSING = "The server is shutting down"

logger = logging.getLogger(__name__)


class GrammarChecker:
    """Says of a constraint, before its request goes to the engine, whether it can be served.

    The helper process starts with the first check. Each test runs in a child of it, with a deadline and a memory
    limit of its own; two run at once, the others wait in line. A helper that dies or hangs is replaced.
    Used on one event loop.
    """

    def __init__(
        self,
        engine: str,
        vocabulary: Vocabulary,
        *,
        deadline_s: float = DEFAULT_DEADLINE_S,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        hang_margin_s: float = HANG_MARGIN_S,
    ) -> None:
        """``engine``: name of the grammar engine, as plugins offer it."""
        self._patience_s = deadline_s + hang_margin_s
        self._setup = Setup(
            engine,
            str(vocabulary.tokenizer_file),
            vocabulary.vocab_size,
            vocabulary.eos_token_ids,
            deadline_s,
            memory_bytes,
        )
        self._cache = _VerdictCache()
        self._asking: dict[Grammar, asyncio.Task[Verdict]] = {}
        self._helper: _Helper | None = None
        self._starting = asyncio.Lock()
        self._problem = ""
        self._is_closed = False

    async def check(self, grammar: Grammar) -> Grammar:
        """The constraint to submit: ``grammar``, normalized.

        Raises:
            GrammarError: it is malformed, unsupported or too complex.
            ValidationError: the engine cannot be used with this model, so no constraint can be served.
            EngineUnavailableError: the helper process died or hung twice, or this checker is closed.
        """
        verdict = self._cache.find(grammar)
        if verdict is None:
            asking = self._asking.get(grammar)
            if asking is None:
                asking = self._asking[grammar] = asyncio.create_task(self._ask(grammar))
                # Whoever asked may have left when it fails; nobody is to be told then.
                asking.add_done_callback(lambda task: task.cancelled() or task.exception())
            # Others may wait for the same verdict, so a client that leaves must not take it away.
            verdict = await asyncio.shield(asking)
        if verdict.grammar is None:
            raise GrammarError(verdict.reason, verdict.place)
        return verdict.grammar

    async def close(self) -> None:
        """End the helper process; checks that still wait fail."""
        self._is_closed = True
        # Not under the lock: whoever holds it may wait for this helper to open.
        if self._helper is not None:
            await self._helper.close()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    async def _ask(self, grammar: Grammar) -> Verdict:
        try:
            for _ in range(2):
                helper = await self._running_helper()
                verdict = await helper.ask(grammar, self._patience_s)
                if verdict is not None:
                    self._cache.keep(grammar, verdict)
                    return verdict
            raise EngineUnavailableError("The helper that tests grammars does not answer. Try again.")
        finally:
            del self._asking[grammar]

    async def _running_helper(self) -> _Helper:
        async with self._starting:
            if self._is_closed:
                raise EngineUnavailableError(_CLOSING)
            if self._problem:
                raise ValidationError(self._problem)
            if self._helper is not None and not self._helper.is_dead:
                return self._helper
            return await self._start_helper()

    async def _start_helper(self) -> _Helper:
        if self._helper is not None:
            await self._helper.close()
        # Known from here on, so that closing ends it even while it opens.
        helper = self._helper = await _Helper.start()
        problem = None if self._is_closed else await helper.open(self._setup)
        if problem == "" and not self._is_closed:
            return helper
        await helper.close()
        if self._is_closed:
            raise EngineUnavailableError(_CLOSING)
        if problem is None:
            raise EngineUnavailableError("The helper that tests grammars does not start. Try again.")
        self._problem = f"grammars are not available: {problem}"
        raise ValidationError(self._problem)


class _Helper:
    """One helper process."""

    def __init__(self, process: Process) -> None:
        self.is_dead = False
        self._heard_at = time.monotonic()
        self._process = process
        self._waiting: dict[int, asyncio.Future[Verdict | None]] = {}
        self._next_id = 0
        self._receiver: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls) -> _Helper:
        # A session of its own: a terminal's Ctrl-C is for the server, and running requests come first.
        command = (sys.executable, "-P", "-m", "tgi_core.sampling.grammar.check_server")
        return cls(await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, start_new_session=True))

    async def open(self, setup: Setup) -> str | None:
        """Why nothing can be tested, "" when all is well; None when the process has died or hangs."""
        self._send(pack(setup))
        try:
            opened = await asyncio.wait_for(self._read(Opened), _OPEN_TIMEOUT_S)
        except (asyncio.IncompleteReadError, TimeoutError):
            return None
        if not opened.problem:
            self._receiver = asyncio.create_task(self._receive())
        return opened.problem

    async def ask(self, grammar: Grammar, patience_s: float) -> Verdict | None:
        """The verdict; None when the process has died over it, or has been killed as it said nothing for so long."""
        self._next_id += 1
        answer: asyncio.Future[Verdict | None] = asyncio.get_running_loop().create_future()
        self._waiting[self._next_id] = answer
        self._send(pack(Check(self._next_id, grammar)))
        asked_at = time.monotonic()
        while True:
            # Others in the line are answered first, each within the same time.
            remaining_s = max(asked_at, self._heard_at) + patience_s - time.monotonic()
            if answer.done() or self.is_dead:
                return await answer
            if remaining_s <= 0:
                logger.error("The helper that tests grammars says nothing for %g s; it is killed.", patience_s)
                self._kill()
            else:
                await asyncio.wait((answer,), timeout=remaining_s)

    async def close(self) -> None:
        """End the process and wait until it is gone."""
        self.is_dead = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _CLOSE_TIMEOUT_S)
        except TimeoutError:
            self._kill()
            await self._process.wait()
        if self._receiver is not None:
            await self._receiver

    def _kill(self) -> None:
        """Kill the process with its tests: they hold its end of the pipe."""
        self.is_dead = True
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _send(self, frame: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(frame)

    async def _receive(self) -> None:
        try:
            while True:
                answer = await self._read(Answer)
                self._heard_at = time.monotonic()
                waiting = self._waiting.pop(answer.check_id)
                # Its request may have been cancelled meanwhile.
                if not waiting.done():
                    waiting.set_result(answer.verdict)
        except asyncio.IncompleteReadError:
            self.is_dead = True
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_result(None)
            self._waiting.clear()

    async def _read(self, kind: type[Frame]) -> Frame:
        assert self._process.stdout is not None
        length = int.from_bytes(await self._process.stdout.readexactly(LENGTH_BYTES), "little")
        return msgspec.msgpack.decode(await self._process.stdout.readexactly(length), type=kind)


class _VerdictCache:
    """The verdicts used last, good and bad, bounded by the text they hold."""

    def __init__(self) -> None:
        self._verdicts: OrderedDict[Grammar, Verdict] = OrderedDict()
        self._num_bytes = 0

    def find(self, grammar: Grammar) -> Verdict | None:
        verdict = self._verdicts.get(grammar)
        if verdict is not None:
            self._verdicts.move_to_end(grammar)
        return verdict

    def keep(self, grammar: Grammar, verdict: Verdict) -> None:
        self._verdicts[grammar] = verdict
        self._num_bytes += _size(grammar, verdict)
        while self._num_bytes > CACHE_BYTES:
            self._num_bytes -= _size(*self._verdicts.popitem(last=False))


def _size(grammar: Grammar, verdict: Verdict) -> int:
    normalized = "" if verdict.grammar is None else verdict.grammar.source
    return len(grammar.source) + len(normalized) + len(verdict.reason)
