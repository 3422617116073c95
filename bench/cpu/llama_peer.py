"""llama.cpp's llama-server with 16 slots on our weights in bf16."""

from __future__ import annotations

from pathlib import Path

from .server import Server, free_port

SLOTS = 16
_CONTEXT_TOKENS_PER_SLOT = 1024


def start_llama_server(binary: Path, model: Path, threads: int) -> Server:
    """A running server; its batching options are llama.cpp's defaults."""
    port = free_port()
    command = [str(binary), "--model", str(model), "--alias", "demo", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--threads", str(threads), "--threads-batch", str(threads)]
    command += ["--parallel", str(SLOTS), "--ctx-size", str(SLOTS * _CONTEXT_TOKENS_PER_SLOT)]
    # Copies of finished slots for later requests would cost time and our prompts never repeat.
    command += ["--cache-ram", "0"]
    return Server(command, port)
