"""A real server as a subprocess, as a user starts it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

import httpx
import psutil

START_TIMEOUT_S = 90.0

COMMAND_VARIABLE = "TESTED_TGI_SERVE"
"""Names the command where the tests run in another environment than the server."""


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_end(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait for the end of ``processes``; returns those that still run.

    One that nobody has asked about has ended too: some containers' process 1 looks after orphans once a second only.
    """
    deadline = time.monotonic() + timeout_s
    while (alive := [process for process in processes if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return alive


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class ServerProcess:
    """``program`` with the given flags on a free port; a context manager that leaves no process behind."""

    def __init__(
        self,
        log: Path,
        *flags: str,
        env: Mapping[str, str] | None = None,
        program: str = "tgi-serve",
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self._start_timeout_s = start_timeout_s
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._command = [
            os.environ.get(COMMAND_VARIABLE) or str(Path(sys.executable).with_name(program)),
            "--hostname",
            "127.0.0.1",
            "--port",
            str(self.port),
            *flags,
        ]
        self._env = os.environ | dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ServerProcess:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT, env=self._env)
        try:
            self.wait_healthy(self._start_timeout_s)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = self.stop()
        assert left == [], f"processes left behind: {left}"

    @property
    def log(self) -> str:
        """What the server has printed."""
        return self._log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        assert self._process is not None
        return self._process.pid

    def child(self, name: str) -> psutil.Process:
        """The ``engine`` or ``api`` process, told by what it has imported."""
        for child in psutil.Process(self.pid).children(recursive=True):
            file = Path(f"/proc/{child.pid}/maps")
            maps = file.read_text() if file.exists() else ""
            if "/zmq/" in maps and ("/httptools/" in maps) == (name == "api"):
                return child
        raise AssertionError(f"no {name} process found")

    def wait_healthy(self, timeout_s: float = START_TIMEOUT_S) -> float:
        """Seconds until ``/health`` says 200."""
        started = time.monotonic()
        while time.monotonic() - started < timeout_s:
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError(f"the server ended with {self._process.returncode}:\n{self.log}")
            if self.health() == 200:
                return time.monotonic() - started
            time.sleep(0.05)
        raise AssertionError(f"the server did not become healthy:\n{self.log}")

    def health(self) -> int:
        """Status of ``/health``; 0 when the connection is refused."""
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code
        except httpx.TransportError:
            return 0

    def gauge(self, name: str) -> float:
        """Value of a metric without labels."""
        for line in httpx.get(f"{self.url}/metrics", timeout=5).text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        raise AssertionError(f"no metric {name}")

    def stop(self, timeout_s: float = 30.0) -> list[int]:
        """Ask the server to stop; returns the processes that were still there afterwards.

        Raises:
            AssertionError: it did not stop within ``timeout_s`` and had to be killed.
        """
        if self._process is None or self._process.poll() is not None:
            return []
        family = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
        self._process.send_signal(signal.SIGTERM)
        late = ""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            states = {process.pid: process.status() for process in family if _runs(process)}
            late = f"the server did not end {timeout_s:g} s after SIGTERM: {states}\n{self.log}"
            self._process.kill()
            self._process.wait()
        # Python's resource tracker ends when it notices that its parent is gone, a moment later.
        alive = wait_for_end(family, timeout_s=3)
        for process in alive:
            process.kill()
        assert not late, late
        return [process.pid for process in alive]
