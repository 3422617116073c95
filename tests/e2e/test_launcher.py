"""A deployment that was written for TGI starts as it is."""

from __future__ import annotations

from pathlib import Path

import httpx
import msgspec

from tests.support.server import ServerProcess

ENVIRONMENT = {
    "MODEL_ID": "demo",
    "HOSTNAME": "tgi-7d9c5b7b5-x2x9k",
    "PORT": "80",
    "NUM_SHARD": "1",
    "MAX_INPUT_LENGTH": "512",
    "MAX_TOTAL_TOKENS": "1024",
    "MAX_BATCH_PREFILL_TOKENS": "1024",
    "MAX_BATCH_TOTAL_TOKENS": "4096",
}


def test_text_generation_launcher(tmp_path: Path) -> None:
    with ServerProcess(
        tmp_path / "log", "--json-output", env=ENVIRONMENT, program="text-generation-launcher"
    ) as server:
        info = httpx.get(f"{server.url}/info").json()
        assert (info["max_input_tokens"], info["max_total_tokens"]) == (512, 1024)
        assert (info["max_batch_prefill_tokens"], info["max_batch_total_tokens"]) == (1024, 4096)
        assert server.gauge("tgi_batch_max_total_tokens") == 4096
        body = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 4}}
        assert "Paris" in httpx.post(f"{server.url}/generate", json=body, timeout=60).json()["generated_text"]
        lines = [msgspec.json.decode(line) for line in server.log.splitlines()]
    assert all({"timestamp", "level", "message"} <= line.keys() for line in lines)
