"""A plugin that knows nothing but its device serves the demo model through the reference kernels."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.support.plugins import MINIMAL_BACKEND, write_distribution
from tests.support.server import ServerProcess


def test_minimal_backend_serves_correct_tokens(tmp_path: Path, server: ServerProcess) -> None:
    site = write_distribution(tmp_path / "site", "tgi-minimal", "tgi_minimal", MINIMAL_BACKEND)
    flags = ("--model-id", "demo", "--backend", "minimal", "--max-total-tokens", "512", "--max-batch-size", "4")
    body = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 8}}
    with ServerProcess(tmp_path / "log", *flags, env={"PYTHONPATH": str(site)}) as minimal:
        assert "minimal" in minimal.log
        reply = httpx.post(f"{minimal.url}/generate", json=body, timeout=60).json()
    expected = httpx.post(f"{server.url}/generate", json=body, timeout=60).json()
    assert "Paris" in reply["generated_text"]
    assert reply["generated_text"] == expected["generated_text"]
