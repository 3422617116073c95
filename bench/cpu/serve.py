"""tgi-serve as a subprocess."""

from __future__ import annotations

import sys
from pathlib import Path

from .engine_process import KV_CACHE_BYTES, MAX_TOTAL_TOKENS
from .server import Server, free_port


def serve_command(model_id: str, port: int, *options: str) -> list[str]:
    """The command line of a server on the loopback interface."""
    command = [str(Path(sys.executable).with_name("tgi-serve")), "--model-id", model_id]
    return [*command, "--hostname", "127.0.0.1", "--port", str(port), *options]


def start_cpu_server(model_dir: Path, *, max_slots: int, threads: int) -> Server:
    """Our server on this machine's processor, beside which others may run."""
    options = ("--cpu-threads", str(threads), "--kv-cache-memory", str(KV_CACHE_BYTES))
    return _start(model_dir, "cpu", max_slots, *options)


def start_null_server(model_dir: Path, *, max_slots: int) -> Server:
    """Our server on a device that costs nothing."""
    return _start(model_dir, "null", max_slots)


def _start(model_dir: Path, backend: str, max_slots: int, *options: str) -> Server:
    port = free_port()
    command = serve_command(str(model_dir), port, "--backend", backend, "--dtype", "bfloat16", *options)
    command += ["--max-batch-size", str(max_slots), "--max-total-tokens", str(MAX_TOTAL_TOKENS)]
    return Server(command, port)
