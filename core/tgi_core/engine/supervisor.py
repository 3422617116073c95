"""Starts the server's processes, notices when one dies or stops, restarts the engine, and shuts everything down."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any

import msgspec

from tgi_core.config import EngineInfo, ServerConfig
from tgi_core.engine.control import (
    ApiReady,
    EngineDown,
    EngineRecovered,
    EngineSuspect,
    EngineUp,
    Heartbeat,
    Loading,
    Ready,
    Refused,
    Shutdown,
    receive_control,
    send_control,
)
from tgi_core.engine.environment import default_environment
from tgi_core.engine.process import (
    DEVICE_LOST_EXIT_CODE,
    HUNG_STEP_EXIT_CODE,
    LATE_COMPILE_EXIT_CODE,
    OUT_OF_MEMORY_EXIT_CODE,
    run_engine,
)
from tgi_core.errors import ExitCode, StartupError

logger = logging.getLogger(__name__)

ApiTarget = Callable[[ServerConfig, socket.socket, Connection], None]
"""Entry of an API process."""

SUSPECT_AFTER_S = 1.25
"""Silence of a serving engine after which it counts as not well: noticed within two seconds."""

LOST_AFTER_S = 15.0
"""Silence after which it is killed and replaced."""

_FIRST_BACK_OFF_S = 0.5
_LONGEST_BACK_OFF_S = 30.0
_STABLE_AFTER_S = 60.0
_KILL_AFTER_S = 5.0
_PAUSED_AFTER_S = 1.0


class EngineLoading(msgspec.Struct, frozen=True):
    """Weights are being read."""

    done_bytes: int
    total_bytes: int


class EngineReady(msgspec.Struct, frozen=True):
    """An engine takes requests."""

    info: EngineInfo


class ServerReady(msgspec.Struct, frozen=True):
    """The HTTP side listens, for the first time."""


class EngineLost(msgspec.Struct, frozen=True):
    """The engine died or was given up; another is started after ``restart_in_s``."""

    reason: str
    restart_in_s: float


class Stopping(msgspec.Struct, frozen=True):
    """The server shuts down."""

    reason: str


Event = EngineLoading | EngineReady | ServerReady | EngineLost | Stopping


class Supervisor:
    """Runs one engine process and one API process until a signal or a failure ends the server.

    The API process outlives engines: while none is up it answers 503. It is started at once, so that it has read its
    tokenizer by the time the engine is warm, and opens the port only then.

    Args:
        config: of the whole server.
        listener: a bound socket that does not listen yet.
        engine_environment: the backend's ``process_environment``.
        api_target: entry of the API process.
        events: called with everything a user may want to see.
    """

    def __init__(
        self,
        config: ServerConfig,
        listener: socket.socket,
        *,
        engine_environment: Mapping[str, str],
        api_target: ApiTarget,
        events: Callable[[Event], None],
    ) -> None:
        self._config = config
        self._listener = listener
        self._engine_environment = engine_environment
        self._api_target = api_target
        self._tell = events
        self._processes = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="tgi-serve-")
        self._engine: _EngineProcess | None = None
        self._engines_started = 0
        self._api: SpawnProcess | None = None
        self._api_pipe: Connection | None = None
        self._restart_at: float | None = None
        self._back_off_s = _FIRST_BACK_OFF_S
        self._was_ready = False
        self._is_listening = False
        self._signal_reader, self._signal_writer = multiprocessing.Pipe(duplex=False)

    def run(self) -> int:
        """Serve until a stop signal.

        Returns:
            The exit code: 0 after a requested stop of a server that was up, 128 plus the signal before that.

        Raises:
            StartupError: the engine or the API process refuses to start.
        """
        self._catch_signals()
        try:
            self._start_api()
            self._start_engine()
            return self._watch()
        finally:
            self._stop_everything()
            self._folder.cleanup()

    # -- the loop ---------------------------------------------------------------------------------------------------

    def _watch(self) -> int:
        assert self._api is not None
        assert self._api_pipe is not None
        while True:
            sources: list[Any] = [self._signal_reader, self._api.sentinel, self._api_pipe]
            if self._engine is not None:
                sources += [self._engine.process.sentinel, self._engine.pipe]
            ready = self._wait(sources, self._next_timeout_s())
            if self._signal_reader in ready:
                number = self._signal_reader.recv_bytes()[0]
                self._tell(Stopping(f"received {signal.Signals(number).name}"))
                return ExitCode.OK if self._is_listening else 128 + number
            if self._api_pipe in ready:
                self._hear_api()
            if self._api.sentinel in ready:
                self._api.join()
                self._tell(Stopping(f"the API process ended with exit code {self._api.exitcode}"))
                return ExitCode.FAILURE
            if self._engine is not None:
                self._attend_engine(self._engine, ready)
            elif self._restart_at is not None and time.monotonic() >= self._restart_at:
                self._start_engine()

    def _wait(self, sources: list[Any], timeout_s: float) -> list[Any]:
        """Wait for a source; a pause of the whole machine does not count as the engine's silence."""
        waits_from = time.monotonic()
        ready = wait(sources, timeout=timeout_s)
        if self._engine is not None and time.monotonic() - waits_from > timeout_s + _PAUSED_AFTER_S:
            self._engine.heard_at = time.monotonic()
        return ready

    def _next_timeout_s(self) -> float:
        if self._restart_at is not None:
            return max(0.0, self._restart_at - time.monotonic())
        return 0.5

    def _attend_engine(self, engine: _EngineProcess, ready: list[Any]) -> None:
        if engine.pipe in ready:
            self._hear_engine(engine)
        if self._engine is engine and engine.process.sentinel in ready:
            engine.process.join()
            self._lose_engine(engine, _describe_exit(engine.process.exitcode))
        elif self._engine is engine and engine.is_serving:
            self._judge_silence(engine)

    def _judge_silence(self, engine: _EngineProcess) -> None:
        silence_s = time.monotonic() - engine.heard_at
        if silence_s > LOST_AFTER_S:
            engine.process.kill()
            engine.process.join()
            self._lose_engine(engine, f"the engine gave no sign of life for {silence_s:.0f} s")
        elif silence_s > SUSPECT_AFTER_S and not engine.is_suspect:
            engine.is_suspect = True
            self._tell_api(EngineSuspect("the engine gives no sign of life"))
            logger.warning("The engine gives no sign of life.")

    # -- messages ---------------------------------------------------------------------------------------------------

    def _hear_engine(self, engine: _EngineProcess) -> None:
        try:
            message = receive_control(engine.pipe)
        except (EOFError, OSError):
            engine.process.join(_KILL_AFTER_S)
            engine.process.kill()
            return
        engine.heard_at = time.monotonic()
        match message:
            case Loading():
                self._tell(EngineLoading(message.done_bytes, message.total_bytes))
            case Ready():
                engine.is_serving = True
                engine.ready_at = engine.heard_at
                self._was_ready = True
                self._tell_api(EngineUp(engine.address, message.info))
                self._tell(EngineReady(message.info))
            case Heartbeat():
                if engine.is_suspect:
                    engine.is_suspect = False
                    self._tell_api(EngineRecovered())
            case Refused():
                self._hear_refusal(engine, message)

    def _hear_refusal(self, engine: _EngineProcess, refusal: Refused) -> None:
        engine.process.join(_KILL_AFTER_S)
        if not self._was_ready:
            raise StartupError(refusal.cause, refusal.fix, ExitCode(refusal.exit_code))
        self._lose_engine(engine, refusal.cause)

    def _hear_api(self) -> None:
        assert self._api_pipe is not None
        try:
            message = receive_control(self._api_pipe)
        except (EOFError, OSError):
            assert self._api is not None
            self._api.join(_KILL_AFTER_S)
            self._api.kill()
            return
        if isinstance(message, Refused):
            raise StartupError(message.cause, message.fix, ExitCode(message.exit_code))
        if isinstance(message, ApiReady):
            self._is_listening = True
            self._tell(ServerReady())

    def _tell_api(self, message: EngineUp | EngineDown | EngineSuspect | EngineRecovered | Shutdown) -> None:
        assert self._api_pipe is not None
        send_control(self._api_pipe, message)

    # -- processes --------------------------------------------------------------------------------------------------

    def _start_api(self) -> None:
        self._api_pipe, remote = multiprocessing.Pipe()
        self._api = self._processes.Process(
            target=self._api_target, args=(self._config, self._listener, remote), name="tgi-serve api"
        )
        self._api.start()
        remote.close()

    def _start_engine(self) -> None:
        self._restart_at = None
        self._engines_started += 1
        # An address of its own for each engine: what was meant for a dead one must not reach its successor.
        address = f"ipc://{self._folder.name}/engine-{self._engines_started}"
        pipe, remote = multiprocessing.Pipe()
        process = self._processes.Process(
            target=run_engine, args=(self._config, address, remote), name="tgi-serve engine"
        )
        with default_environment(self._engine_environment):
            process.start()
        remote.close()
        self._engine = _EngineProcess(process, pipe, address)

    def _lose_engine(self, engine: _EngineProcess, reason: str) -> None:
        if not self._was_ready:
            raise StartupError(f"The engine could not start: {reason}.", "Its log is above.")
        engine.pipe.close()
        self._engine = None
        self._tell_api(EngineDown(reason))
        if engine.is_serving and time.monotonic() - engine.ready_at > _STABLE_AFTER_S:
            self._back_off_s = _FIRST_BACK_OFF_S
        self._restart_at = time.monotonic() + self._back_off_s
        self._tell(EngineLost(reason, self._back_off_s))
        self._back_off_s = min(2 * self._back_off_s, _LONGEST_BACK_OFF_S)

    def _stop_everything(self) -> None:
        """Let the API process finish what runs, then end the engine; whatever does not go is killed."""
        try:
            if self._api is not None and self._api_pipe is not None:
                send_control(self._api_pipe, Shutdown())
                self._drain(self._api)
                _end(self._api, _KILL_AFTER_S)
        finally:
            if self._engine is not None:
                send_control(self._engine.pipe, Shutdown())
                # Before it serves, an engine does not listen, and nothing of it is worth waiting for.
                _end(self._engine.process, _KILL_AFTER_S if self._engine.is_serving else 0.0)

    def _drain(self, api: SpawnProcess) -> None:
        """Wait for the API process to finish; a second stop signal ends what still runs.

        It is told when there is no engine any more to finish with.
        """
        timeout_s = self._config.api.graceful_termination_timeout_s if self._was_ready else 0.0
        deadline = time.monotonic() + timeout_s
        while api.is_alive() and (left_s := deadline - time.monotonic()) > 0:
            engine = self._engine
            sources: list[Any] = [self._signal_reader, api.sentinel]
            if engine is not None:
                sources += [engine.process.sentinel, engine.pipe]
            ready = wait(sources, timeout=left_s)
            if self._signal_reader in ready:
                number = self._signal_reader.recv_bytes()[0]
                self._tell(Stopping(f"received {signal.Signals(number).name} again, running requests end now"))
                self._tell_api(Shutdown(at_once=True))
                deadline = time.monotonic() + _KILL_AFTER_S
            if engine is not None and engine.process.sentinel in ready:
                engine.process.join()
                self._engine = None
                self._tell_api(EngineDown(_describe_exit(engine.process.exitcode)))
            elif engine is not None and engine.pipe in ready:
                self._hear_engine(engine)

    def _catch_signals(self) -> None:
        def handle(number: int, _frame: FrameType | None) -> None:
            self._signal_writer.send_bytes(bytes([number]))

        signal.signal(signal.SIGTERM, handle)
        signal.signal(signal.SIGINT, handle)


class _EngineProcess:
    """One incarnation of the engine."""

    def __init__(self, process: SpawnProcess, pipe: Connection, address: str) -> None:
        self.process = process
        self.pipe = pipe
        self.address = address
        self.heard_at = time.monotonic()
        self.ready_at = 0.0
        self.is_serving = False
        self.is_suspect = False


def _end(process: SpawnProcess, timeout_s: float) -> None:
    process.join(timeout_s)
    if process.is_alive():
        process.terminate()
        process.join(0.5)
    if process.is_alive():
        process.kill()
        process.join()


def _describe_exit(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"the engine was killed by {signal.Signals(-exit_code).name}"
    if exit_code == HUNG_STEP_EXIT_CODE:
        return "a step of the engine hung"
    if exit_code == OUT_OF_MEMORY_EXIT_CODE:
        return "the engine found no memory on its device"
    if exit_code == DEVICE_LOST_EXIT_CODE:
        return "the engine's device failed"
    if exit_code == LATE_COMPILE_EXIT_CODE:
        return "a step of the engine had something compiled, which --strict-shapes forbids"
    return f"the engine ended with exit code {exit_code}"
