"""Messages on the pipes between the supervisor and its processes."""

from __future__ import annotations

from multiprocessing.connection import Connection

import msgspec

from tgi_core.config import EngineInfo


class Loading(msgspec.Struct, frozen=True, tag=True):
    """Engine to supervisor: weights are being read."""

    done_bytes: int
    total_bytes: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Engine to supervisor: it takes requests."""

    info: EngineInfo


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """Engine to supervisor, from a thread of its own: the process is alive."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Either process to supervisor: it cannot start, with the parts of a StartupError."""

    cause: str
    fix: str
    exit_code: int


class ApiReady(msgspec.Struct, frozen=True, tag=True):
    """API process to supervisor: it listens."""


class EngineUp(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to API process: an engine listens at ``address``."""

    address: str
    info: EngineInfo


class EngineSuspect(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to API process: the engine gives no sign of life but has not been given up."""

    reason: str


class EngineRecovered(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to API process: the suspected engine is alive."""


class EngineDown(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to API process: the engine is gone; another may follow."""

    reason: str


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to either process: finish what runs, then exit; ``at_once`` ends what runs instead."""

    at_once: bool = False


Control = (
    Loading
    | Ready
    | Heartbeat
    | Refused
    | ApiReady
    | EngineUp
    | EngineSuspect
    | EngineRecovered
    | EngineDown
    | Shutdown
)

_DECODER = msgspec.msgpack.Decoder(Control)


def send_control(pipe: Connection, message: Control) -> None:
    """Send one message; a pipe whose other end is gone is ignored, since the sentinel tells of that."""
    try:
        pipe.send_bytes(msgspec.msgpack.encode(message))
    except (BrokenPipeError, ConnectionResetError):
        return


def receive_control(pipe: Connection) -> Control:
    """Receive one message.

    Raises:
        EOFError: the other end has closed.
    """
    return _DECODER.decode(pipe.recv_bytes())
