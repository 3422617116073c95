"""Converts in a process of its own, so that torch and what came with the files end with it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from tgi_core.errors import ExitCode, StartupError
from tgi_core.weights.pickled import convert_pickled
from tgi_core.weights.progress import Progress
from tgi_core.weights.tokenizers.convert import convert_tokenizer
from tgi_core.weights.tokenizers.files import TokenizerSource

Task = Callable[[Progress], str | None]


class _Moved(msgspec.Struct, frozen=True, tag=True):
    description: str
    done_bytes: int
    total_bytes: int


class _Failed(msgspec.Struct, frozen=True, tag=True):
    cause: str
    fix: str
    is_disk: bool = False


class _Finished(msgspec.Struct, frozen=True, tag=True):
    result: str


def convert_apart(files: Sequence[Path], target: Path, progress: Progress) -> None:
    """``convert_pickled`` in another process.

    Raises:
        StartupError: as ``convert_pickled``; also when the process dies.
        OSError: ``target`` cannot be written.
    """
    _run(
        partial(convert_pickled, list(files), target),
        progress,
        files[0].parent,
        "Look for a lack of memory; the weights need not fit, but the largest tensor must.",
    )


def convert_tokenizer_apart(source: TokenizerSource, folder: Path, target: Path, progress: Progress) -> str:
    """``convert_tokenizer`` in another process.

    Raises:
        StartupError: as ``convert_tokenizer``; also when the process dies.
        OSError: ``target`` cannot be written.
    """
    return _run(partial(convert_tokenizer, source, folder, target), progress, source.file, "Look for a lack of memory.")


def _run(task: Task, progress: Progress, subject: Path, advice: str) -> str:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(task, theirs), name="convert", daemon=True)
    process.start()
    theirs.close()
    try:
        return _follow(ours, progress)
    except EOFError:
        process.join()
        raise StartupError(
            f"The conversion of {subject} ended with exit code {process.exitcode}.", advice, ExitCode.MODEL
        ) from None
    finally:
        ours.close()
        if process.is_alive():
            process.join()


def _follow(connection: Connection, progress: Progress) -> str:
    while True:
        match msgspec.msgpack.decode(connection.recv_bytes(), type=_Moved | _Failed | _Finished):
            case _Moved(description, done_bytes, total_bytes):
                progress(description, done_bytes, total_bytes)
            case _Failed(cause, _, True):
                raise OSError(cause)
            case _Failed(cause, fix):
                raise StartupError(cause, fix, ExitCode.MODEL)
            case _Finished(result):
                return result


def _work(task: Task, connection: Connection) -> None:
    def send(message: _Moved | _Failed | _Finished) -> None:
        connection.send_bytes(msgspec.msgpack.encode(message))

    def progress(description: str, done_bytes: int, total_bytes: int) -> None:
        send(_Moved(description, done_bytes, total_bytes))

    try:
        result = task(progress)
    except StartupError as refusal:
        send(_Failed(refusal.cause, refusal.fix))
    except OSError as error:
        send(_Failed(str(error), "", is_disk=True))
    else:
        send(_Finished(result or ""))
