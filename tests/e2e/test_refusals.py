"""Bad input at start: each is refused at once, with its cause, its fix and its exit code."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tgi_core.errors import ExitCode


def refuse(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run the command line, which must give up by itself."""
    command = [str(Path(sys.executable).with_name("tgi-serve")), *flags]
    environment = {name: value for name, value in os.environ.items() if name not in {"PORT", "MODEL_ID"}}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def test_unknown_model_path(tmp_path: Path) -> None:
    result = refuse("--model-id", str(tmp_path / "nothing"), "--port", "0")
    assert result.returncode == ExitCode.MODEL
    assert "nothing" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("content", [b"not a gguf at all", b"GGUF\x03\x00\x00\x00", b""])
def test_broken_gguf(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    result = refuse("--model-id", str(file), "--port", "0")
    assert result.returncode == ExitCode.MODEL
    assert "broken.gguf" in result.stderr
    assert "Traceback" not in result.stderr


def test_unknown_backend() -> None:
    result = refuse("--model-id", "demo", "--backend", "abacus", "--port", "0")
    assert result.returncode == ExitCode.BACKEND
    assert "abacus" in result.stderr
    assert "cpu" in result.stderr


def test_port_in_use_is_told_before_the_model_is_read() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        result = refuse("--model-id", "demo", "--port", str(taken.getsockname()[1]))
    assert result.returncode == ExitCode.PORT
    assert str(taken) not in result.stderr
    assert "Traceback" not in result.stderr


def test_a_model_of_unknown_type(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "hal9000", "vocab_size": 10}')
    (tmp_path / "tokenizer.json").write_text("{}")
    result = refuse("--model-id", str(tmp_path), "--port", "0")
    assert result.returncode == ExitCode.MODEL
    assert "Traceback" not in result.stderr


def test_float16_on_the_cpu_is_refused_with_what_works() -> None:
    result = refuse("--model-id", "demo", "--backend", "cpu", "--dtype", "float16", "--port", "0")
    assert result.returncode == ExitCode.BACKEND
    assert "float32" in result.stderr


def test_a_context_that_does_not_fit_names_what_would(tmp_path: Path) -> None:
    flags = ("--model-id", "demo", "--kv-cache-memory", "1MiB", "--max-total-tokens", "4096", "--port", "0")
    result = refuse(*flags)
    assert result.returncode == ExitCode.MEMORY
    assert "--max-total-tokens" in result.stderr
