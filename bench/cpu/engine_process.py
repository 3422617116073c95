"""Our engine process without HTTP: the real one, driven over its ZeroMQ address by a client that only counts."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import zmq

from tgi_core.config import ApiConfig, EngineConfig, ModelConfig, ServerConfig
from tgi_core.engine.control import Ready, Refused, Shutdown, receive_control, send_control
from tgi_core.engine.environment import default_environment
from tgi_core.engine.frames import Finish, RequestFailed, Submit, decode_message, encode, pack_ids
from tgi_core.engine.process import run_engine
from tgi_core.plugins import Plugins
from tgi_core.sampling.params import SamplingParams

KV_CACHE_BYTES = 1 << 30
"""For engines that run beside others, of which none may take all memory."""

MAX_TOTAL_TOKENS = 1024
_RECEIVE_TIMEOUT_MS = 60_000
_STOP_TIMEOUT_S = 30.0


class EngineProcess:
    """Starts an engine process and waits until it is warm; use it in a ``with`` statement.

    Args:
        model_dir: folder in Hugging Face's layout.
        backend: name of the backend.
        max_slots: requests that run at once.
        threads: compute threads; None leaves them to the backend.
        kv_cache_bytes: memory for the KV cache; None leaves it to the backend.
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        backend: str,
        max_slots: int,
        threads: int | None = None,
        kv_cache_bytes: int | None = None,
    ) -> None:
        config = ServerConfig(
            model=ModelConfig(model_id=str(model_dir), model_dir=model_dir),
            engine=EngineConfig(
                backend=backend,
                dtype="bfloat16",
                max_slots=max_slots,
                max_total_tokens=MAX_TOTAL_TOKENS,
                kv_cache_bytes=kv_cache_bytes,
                cpu_threads=threads,
            ),
            api=ApiConfig(),
        )
        self._folder = tempfile.TemporaryDirectory()
        address = f"ipc://{self._folder.name}/engine"
        spawn = multiprocessing.get_context("spawn")
        self._control, their_end = spawn.Pipe()
        self._process = spawn.Process(target=run_engine, args=(config, address, their_end))
        with default_environment(Plugins.discover().backends()[backend].process_environment()):
            self._process.start()
        their_end.close()
        self._wait_until_ready()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, _RECEIVE_TIMEOUT_MS)
        self._socket.connect(address)
        self._last_id = 0

    def generate(self, prompts: list[list[int]], new_tokens: int, concurrency: int | None = None) -> float:
        """Seconds to make ``new_tokens`` for every prompt, ``concurrency`` of them at a time (all by default)."""
        waiting = [pack_ids(prompt) for prompt in reversed(prompts)]
        unfinished = len(prompts)
        started_at = time.perf_counter()
        free = min(concurrency or unfinished, unfinished)
        while unfinished:
            for _ in range(min(free, len(waiting))):
                self._submit(waiting.pop(), new_tokens)
            message = decode_message(self._socket.recv())
            if isinstance(message, RequestFailed):
                raise RuntimeError(message.message)
            free = len(message.finishes) - message.finishes.count(Finish.NOT)
            unfinished -= free
        return time.perf_counter() - started_at

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        send_control(self._control, Shutdown())
        self._process.join(_STOP_TIMEOUT_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._context.destroy()
        self._folder.cleanup()

    def _submit(self, prompt: bytes, new_tokens: int) -> None:
        self._last_id += 1
        self._socket.send(encode(Submit(self._last_id, prompt, new_tokens, SamplingParams(), ignore_eos=True)))

    def _wait_until_ready(self) -> None:
        while True:
            match receive_control(self._control):
                case Ready():
                    return
                case Refused() as refused:
                    raise RuntimeError(f"{refused.cause} {refused.fix}")


def start_cpu_engine(model_dir: Path, *, max_slots: int, threads: int) -> EngineProcess:
    """Our engine on this machine's processor, beside which others may run."""
    return EngineProcess(model_dir, backend="cpu", max_slots=max_slots, threads=threads, kv_cache_bytes=KV_CACHE_BYTES)
