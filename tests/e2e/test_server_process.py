"""What starts and stops servers for the tests sees when one does not end."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.server import COMMAND_VARIABLE, ServerProcess

HEALTHY = """\
from http.server import BaseHTTPRequestHandler, HTTPServer
from sys import argv

class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

HTTPServer(("127.0.0.1", int(argv[argv.index("--port") + 1])), Healthy).serve_forever()
"""


def test_a_server_that_does_not_end_is_killed_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "server"
    program.write_text(f"#!{sys.executable}\n{HEALTHY}")
    program.chmod(0o700)
    monkeypatch.setenv(COMMAND_VARIABLE, str(program))
    with ServerProcess(tmp_path / "log") as server:
        assert server.stop() == []
    with ServerProcess(tmp_path / "log") as server:
        stopped = psutil.Process(server.pid)
        stopped.suspend()
        # Of two signals that wait, the one with the smaller number comes first, and that is SIGTERM.
        while stopped.status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        with pytest.raises(AssertionError, match=rf"did not end 0.1 s after SIGTERM: {{{stopped.pid}: 'stopped'}}"):
            server.stop(timeout_s=0.1)
        assert not stopped.is_running()
