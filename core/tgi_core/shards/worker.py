"""Where a shard's device work runs: on the caller's thread, or on one thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")


class Worker(Protocol):
    """Runs the shard's device work in order."""

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run ``work`` after everything submitted before; its result or exception is in the future."""

    def close(self) -> None:
        """Run what has been submitted and end."""


class ThreadWorker:
    """One thread of its own, for devices whose kernels return only when they have run.

    Launching a step then returns at once, so that the host can plan the next one meanwhile.
    """

    def __init__(self, num_threads: int | None) -> None:
        # OpenMP keeps a team of threads for each calling thread, so its size is set on the thread that will call.
        self._executor = ThreadPoolExecutor(1, "tgi-shard", _set_threads, (num_threads,))

    def submit(self, work: Callable[[], T]) -> Future[T]:
        return self._executor.submit(work)

    def close(self) -> None:
        self._executor.shutdown()


class InlineWorker:
    """The caller's thread, for devices whose kernels return before they have run."""

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        pass


def make_worker(*, asynchronous: bool, cpu_threads: int | None) -> Worker:
    """The caller's thread for a device that returns before work has run, else a thread of its own."""
    return InlineWorker() if asynchronous else ThreadWorker(cpu_threads)


def _set_threads(num_threads: int | None) -> None:
    if num_threads is not None:
        torch.set_num_threads(num_threads)
