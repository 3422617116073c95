"""``bench http`` against the demo model."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.server import ServerProcess
from tgi_api.cli import main


def test_figures(server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    flags = ["--url", server.url, "--streams", "6", "--requests", "2", "--output", "8", "--processes", "2"]
    assert main(["bench", "http", *flags, "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    assert figures["client_processes"] == 2
    assert figures["tokens_per_s"] > 0
    assert 0 < figures["ttft_p50_ms"] <= figures["ttft_p99_ms"]
