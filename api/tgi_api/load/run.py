"""Spreads a load over client processes and puts their results together."""

from __future__ import annotations

import subprocess
import sys
import time

import msgspec

from tgi_api.load.client import ClientPlan, LoadError, LoadResult

_START_DELAY_S = 1.0
"""Time for the client processes to start, so that they begin together."""


def run_load(
    port: int,
    prompts: list[str],
    *,
    streams: int,
    max_tokens: int,
    host: str = "127.0.0.1",
    model: str = "tgi",
    processes: int = 1,
) -> LoadResult:
    """Send ``prompts`` through ``streams`` streams, spread over client processes.

    Raises:
        LoadError: a request failed or ended early.
    """
    starts_at = time.monotonic() + _START_DELAY_S
    clients = []
    for index in range(processes):
        plan = ClientPlan(
            host=host,
            port=port,
            model=model,
            prompts=prompts[index::processes],
            streams=(streams - index - 1) // processes + 1,
            max_tokens=max_tokens,
            starts_at=starts_at,
        )
        client = subprocess.Popen(
            [sys.executable, "-m", "tgi_api.load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert client.stdin is not None
        client.stdin.write(msgspec.json.encode(plan))
        client.stdin.close()
        client.stdin = None
        clients.append(client)
    results = []
    for client in clients:
        output, error = client.communicate()
        if client.returncode != 0:
            raise LoadError(error.decode(errors="replace").strip())
        results.append(msgspec.json.decode(output, type=LoadResult))
    return LoadResult(
        tokens=sum(result.tokens for result in results),
        started_at=min(result.started_at for result in results),
        ended_at=max(result.ended_at for result in results),
        ttft_ms=[value for result in results for value in result.ttft_ms],
        gap_ms=[value for result in results for value in result.gap_ms],
    )
