"""From the command line to the first token, and the size of what is installed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path

from tgi_api.load import text_prompts

from .context import Context
from .measure import ForeignCpu, Row, alternate
from .serve import serve_command
from .server import Server, free_port

_REPOSITORY = Path(__file__).parents[2]


def first_token_s(seed: int) -> float:
    """Seconds from starting ``tgi-serve --model-id demo`` to its first token."""
    body = {"prompt": text_prompts(1, seed)[0], "max_tokens": 2, "stream": True}
    started_at = time.monotonic()
    port = free_port()
    with Server(serve_command("demo", port), port):
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        first_line = connection.getresponse().readline()
        seconds = time.monotonic() - started_at
        connection.close()
    if not first_line.startswith(b"data: {"):
        raise RuntimeError(f"not an event: {first_line!r}")
    return seconds


def run_startup_case(context: Context) -> list[Row]:
    """Time to the first token; the round that is dropped converts the model and warms the disk cache."""
    foreign = ForeignCpu()
    values = alternate(context.rounds, {"ours": first_token_s})
    return [
        Row(
            case="tgi-serve --model-id demo to the first token, warm disk",
            unit="s",
            ours=values["ours"],
            target=8,
            aim=4,
            at_most=True,
            foreign_cores=foreign.cores(),
        )
    ]


def run_wheel_case(_context: Context) -> list[Row]:
    """Size of the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "build", "--wheel", "--outdir", folder, str(_REPOSITORY)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = Path(folder).glob("*.whl")
        size_mb = wheel.stat().st_size / 1e6
    return [Row(case="wheel", unit="MB", ours=[size_mb], target=1, at_most=True)]
