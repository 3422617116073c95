"""An HTTP server under test as a subprocess: started, waited for, stopped."""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from types import TracebackType
from typing import Self

_POLL_S = 0.02
_STOP_TIMEOUT_S = 30.0


def free_port() -> int:
    """A port that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """Starts ``command`` and returns once ``GET /health`` says 200; use it in a ``with`` statement."""

    def __init__(self, command: list[str], port: int, timeout_s: float = 120.0) -> None:
        self.port = port
        self._log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        try:
            self._wait_until_healthy(timeout_s)
        except BaseException:
            self.stop()
            raise

    @property
    def log(self) -> str:
        """What the server has printed."""
        self._log.seek(0)
        return self._log.read()

    def stop(self) -> None:
        """End the process, politely first."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self._log.close()

    def _wait_until_healthy(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with exit code {self._process.returncode}:\n{self.log}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(_POLL_S)
        raise RuntimeError(f"the server was not up after {timeout_s:.0f} s:\n{self.log}")
