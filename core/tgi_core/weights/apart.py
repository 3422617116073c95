"""Converts pickled weights in a process of its own, so that torch and what came with the files end with it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from tgi_core.errors import ExitCode, StartupError
from tgi_core.weights.pickled import convert_pickled
from tgi_core.weights.progress import Progress


class _Moved(msgspec.Struct, frozen=True, tag=True):
    description: str
    done_bytes: int
    total_bytes: int


class _Failed(msgspec.Struct, frozen=True, tag=True):
    cause: str
    fix: str
    is_disk: bool = False


class _Finished(msgspec.Struct, frozen=True, tag=True):
    pass


def convert_apart(files: Sequence[Path], target: Path, progress: Progress) -> None:
    """``convert_pickled`` in another process.

    Raises:
        StartupError: as ``convert_pickled``; also when the process dies.
        OSError: ``target`` cannot be written.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(list(files), target, theirs), name="convert", daemon=True)
    process.start()
    theirs.close()
    try:
        _follow(ours, progress)
    except EOFError:
        process.join()
        raise StartupError(
            f"The conversion of {files[0].parent} ended with exit code {process.exitcode}.",
            "Look for a lack of memory; the weights need not fit, but the largest tensor must.",
            ExitCode.MODEL,
        ) from None
    finally:
        ours.close()
        if process.is_alive():
            process.join()


def _follow(connection: Connection, progress: Progress) -> None:
    while True:
        match msgspec.msgpack.decode(connection.recv_bytes(), type=_Moved | _Failed | _Finished):
            case _Moved(description, done_bytes, total_bytes):
                progress(description, done_bytes, total_bytes)
            case _Failed(cause, _, True):
                raise OSError(cause)
            case _Failed(cause, fix):
                raise StartupError(cause, fix, ExitCode.MODEL)
            case _Finished():
                return


def _work(files: list[Path], target: Path, connection: Connection) -> None:
    def send(message: _Moved | _Failed | _Finished) -> None:
        connection.send_bytes(msgspec.msgpack.encode(message))

    def progress(description: str, done_bytes: int, total_bytes: int) -> None:
        send(_Moved(description, done_bytes, total_bytes))

    try:
        convert_pickled(files, target, progress)
    except StartupError as refusal:
        send(_Failed(refusal.cause, refusal.fix))
    except OSError as error:
        send(_Failed(str(error), "", is_disk=True))
    else:
        send(_Finished())
