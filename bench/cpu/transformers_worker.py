"""The end of transformers_peer.py in this process: loaded once, measured many times."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_STOP_TIMEOUT_S = 60.0


class TransformersWorker:
    """Starts the peer with the Python that has transformers; use it in a ``with`` statement.

    Attributes:
        name: transformers and torch with their versions.
    """

    def __init__(self, python: Path, model_dir: Path, threads: int) -> None:
        command = [str(python), str(Path(__file__).with_name("transformers_peer.py")), str(model_dir), str(threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.name: str = self._receive()["name"]

    def generate(self, prompts: list[list[int]], new_tokens: int) -> float:
        """Seconds to make ``new_tokens`` for every prompt, in one batch."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "new_tokens": new_tokens}) + "\n")
        self._process.stdin.flush()
        return float(self._receive()["seconds"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_STOP_TIMEOUT_S)

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"transformers ended with exit code {self._process.wait()}; its error is above")
        reply: dict[str, Any] = json.loads(line)
        return reply
