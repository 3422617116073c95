"""The helper process that tests constraints: ``python -m tgi_core.sampling.grammar.check_server``.

It opens the grammar engine once, then forks a child for each test. A child dies at its deadline or at its memory limit
without harm to anything else, and the next one finds the tokenizer loaded. The helper itself has one thread, which is
what makes forking safe, and ends when its standard input does: with its API process.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
from collections import deque
from pathlib import Path
from typing import NoReturn

from tgi_core.errors import StartupError
from tgi_core.plugins import Plugins
from tgi_core.sampling.grammar.check_frames import Answer, Check, Opened, Setup, Verdict, pack, take
from tgi_core.sampling.grammar.engine import GrammarCompiler, GrammarError
from tgi_core.sampling.grammar.prepare import prepare_grammar

MAX_CHILDREN = 2
"""Tests at once: an explosive constraint that uses up its time leaves a place for others."""
STACK_BYTES = 1 << 20
"""Stack of a test; the engine's threads have several times as much, so what passes here does not overflow there."""

_READ_BYTES = 1 << 16
_STDIN, _STDOUT = 0, 1


def main() -> None:
    """Serve one API process."""
    buffer = bytearray()
    setup = _read_setup(buffer)
    if setup is None:
        return
    try:
        compiler = Plugins.discover().choose_grammar_engine(setup.engine).open(setup.vocabulary)
    except StartupError as refusal:
        _write(pack(Opened(str(refusal))))
        return
    _write(pack(Opened()))
    _CheckServer(setup, compiler, buffer).serve()


class _Child:
    """A running test: the request it answers, its process and what it has written so far."""

    def __init__(self, check_id: int, pid: int) -> None:
        self.check_id = check_id
        self.pid = pid
        self.output = bytearray()


class _CheckServer:
    """Reads checks, forks tests, passes verdicts on."""

    def __init__(self, setup: Setup, compiler: GrammarCompiler, buffer: bytearray) -> None:
        self._setup = setup
        self._compiler = compiler
        self._buffer = buffer
        self._waiting: deque[Check] = deque()
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(_STDIN, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            self._take_checks()
            while self._waiting and len(self._children) < MAX_CHILDREN:
                self._fork(self._waiting.popleft())
            for key, _ in self._selector.select():
                if key.fd == _STDIN:
                    data = os.read(_STDIN, _READ_BYTES)
                    if not data:
                        self._kill_children()
                        return
                    self._buffer += data
                else:
                    self._read_child(key.fd)

    def _take_checks(self) -> None:
        while (check := take(self._buffer, Check)) is not None:
            self._waiting.append(check)

    def _fork(self, check: Check) -> None:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _run_test(check, self._setup, self._compiler, writer)
        os.close(writer)
        self._children[reader] = _Child(check.check_id, pid)
        self._selector.register(reader, selectors.EVENT_READ)

    def _read_child(self, reader: int) -> None:
        child = self._children[reader]
        data = os.read(reader, _READ_BYTES)
        if data:
            child.output += data
            return
        self._selector.unregister(reader)
        os.close(reader)
        del self._children[reader]
        _, status = os.waitpid(child.pid, 0)
        verdict = take(child.output, Verdict) or self._died(os.waitstatus_to_exitcode(status))
        _write(pack(Answer(child.check_id, verdict)))

    def _died(self, exit_code: int) -> Verdict:
        if exit_code == -signal.SIGALRM:
            return Verdict(None, f"it is too complex: it takes more than {self._setup.deadline_s:g} s to compile")
        limit_mib = self._setup.memory_bytes >> 20
        return Verdict(None, f"it is too complex: it takes more than {limit_mib} MiB to compile, or is nested too deep")

    def _kill_children(self) -> None:
        for child in self._children.values():
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)


def _run_test(check: Check, setup: Setup, compiler: GrammarCompiler, writer: int) -> NoReturn:
    """The child's whole life."""
    try:
        # The timer's signal kills, as Python has no handler for it: it works while a library holds the interpreter.
        signal.setitimer(signal.ITIMER_REAL, setup.deadline_s)
        _limit_memory(setup.memory_bytes)
        # A library that dies talks on standard error, which is the server's log.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        verdict = _test(check, setup, compiler)
        with open(writer, "wb") as output:
            output.write(pack(verdict))
    finally:
        os._exit(0)


def _test(check: Check, setup: Setup, compiler: GrammarCompiler) -> Verdict:
    try:
        return Verdict(prepare_grammar(check.grammar, compiler, setup.vocabulary))
    except GrammarError as error:
        return Verdict(None, error.reason, error.place)
    except RecursionError:
        return Verdict(None, "it is nested too deep")
    except MemoryError:
        raise  # to die of it, like a library that cannot catch it
    except Exception as error:  # an engine may raise anything, and the client is to know
        return Verdict(None, f"the grammar engine fails: {type(error).__name__}: {error}")


def _limit_memory(extra_bytes: int) -> None:
    """Let the process allocate ``extra_bytes`` beyond what it has, and little stack."""
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_STACK, STACK_BYTES)]
    held_bytes = _data_bytes()
    if held_bytes is not None:
        limits.append((resource.RLIMIT_DATA, held_bytes + extra_bytes))
    for limit, soft in limits:
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _data_bytes() -> int | None:
    """Private writable memory of this process, as RLIMIT_DATA counts it; None where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:"))


def _read_setup(buffer: bytearray) -> Setup | None:
    while (setup := take(buffer, Setup)) is None:
        data = os.read(_STDIN, _READ_BYTES)
        if not data:
            return None
        buffer += data
    return setup


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(_STDOUT, view) :]


if __name__ == "__main__":
    main()
