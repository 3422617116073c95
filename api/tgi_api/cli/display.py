"""What the supervising process shows: warnings, progress, the summary at start, notices afterwards.

On a terminal start-up is drawn with rich; everywhere else everything is a log line.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tgi_api.cli.summary import Summary, curl_line, size_text
from tgi_core.errors import StartupError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

logger = logging.getLogger("tgi_api.cli")

PROGRESS_INTERVAL_S = 5.0
"""Least time between two log lines about one piece of work."""


class Display(ABC):
    """Shows a start to people or to a log collector.

    Attributes:
        draws: whether it shows bars, which are of no use in a log.
    """

    draws = False

    @abstractmethod
    def warn(self, message: str) -> None:
        """Something was given that has no effect."""

    @abstractmethod
    def info(self, message: str) -> None:
        """Something a user should know."""

    @abstractmethod
    def progress(self, description: str, done_bytes: int, total_bytes: int) -> None:
        """Called often while the work that ``description`` names moves on."""

    @abstractmethod
    def summary(self, summary: Summary) -> None:
        """The server takes requests; its facts once."""

    @abstractmethod
    def refuse(self, refusals: Sequence[StartupError]) -> None:
        """The server does not start; every cause with its fix."""

    def close(self) -> None:  # noqa: B027 - only a terminal has something to take away
        """Take away what is still drawn."""


class LogDisplay(Display):
    """Log lines, as text or as JSON; refusals in text go to standard error as on a terminal."""

    def __init__(self, *, json_output: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._json_output = json_output
        self._clock = clock
        self._started: dict[str, tuple[float, int]] = {}
        self._shown_at_s: dict[str, float] = {}
        self._finished: set[str] = set()

    def warn(self, message: str) -> None:
        logger.warning(message)

    def info(self, message: str) -> None:
        logger.info(message)

    def progress(self, description: str, done_bytes: int, total_bytes: int) -> None:
        if description in self._finished:
            return
        now_s = self._clock()
        started_s, started_bytes = self._started.setdefault(description, (now_s, done_bytes))
        if done_bytes >= total_bytes:
            self._finished.add(description)
        elif now_s - self._shown_at_s.get(description, -math.inf) < PROGRESS_INTERVAL_S:
            return
        self._shown_at_s[description] = now_s
        speed = ""
        if now_s > started_s:
            speed = f", {size_text(int((done_bytes - started_bytes) / (now_s - started_s)))}/s"
        logger.info("%s: %s of %s%s", description, size_text(done_bytes), size_text(total_bytes), speed)

    def summary(self, summary: Summary) -> None:
        for name, value in summary.facts:
            logger.info("%s: %s", name, value)
        for name, size_bytes in summary.memory:
            logger.info("Memory: %s %s", size_text(size_bytes), name)
        for note in summary.notes:
            logger.info("Note: %s", note)
        logger.info("Serving on %s", summary.url)

    def refuse(self, refusals: Sequence[StartupError]) -> None:
        if not self._json_output:
            print_refusals(refusals)
            return
        for refusal in refusals:
            logger.error(str(refusal))


class TerminalDisplay(Display):
    """Bars, a table and colours."""

    draws = True

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Progress | None = None

    def warn(self, message: str) -> None:
        self._console.print(f"[yellow]warning:[/] {_plain(message)}", soft_wrap=True)

    def info(self, message: str) -> None:
        self._console.print(_plain(message), soft_wrap=True)

    def progress(self, description: str, done_bytes: int, total_bytes: int) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        if self._bars is None:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(binary_units=True),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._bars.start()
        shown = _plain(description)
        task = next((task.id for task in self._bars.tasks if task.description == shown), None)
        if task is None:
            task = self._bars.add_task(shown, total=total_bytes)
        self._bars.update(task, completed=done_bytes, total=total_bytes)

    def summary(self, summary: Summary) -> None:
        from rich.table import Table

        self.close()
        facts = Table.grid(padding=(0, 2))
        for name, value in summary.facts:
            facts.add_row(f"[bold]{name}[/]", _plain(value))
        if summary.memory:
            memory = Table.grid(padding=(0, 2))
            memory.add_column(justify="right")
            for name, size_bytes in summary.memory:
                memory.add_row(size_text(size_bytes), _plain(name))
            facts.add_row("[bold]Memory[/]", memory)
        for note in summary.notes:
            facts.add_row("[bold]Note[/]", _plain(note))
        self._console.print()
        self._console.print(facts)
        self._console.print(f"\n[bold green]Serving on {summary.url}[/]. Try:", soft_wrap=True)
        self._console.print(f"  {_plain(curl_line(summary))}\n", soft_wrap=True)

    def refuse(self, refusals: Sequence[StartupError]) -> None:
        self.close()
        print_refusals(refusals)

    def close(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def make_display(*, json_output: bool) -> Display:
    """The display that suits standard output."""
    if json_output or not sys.stdout.isatty():
        return LogDisplay(json_output=json_output)
    from rich.console import Console

    return TerminalDisplay(Console(highlight=False))


def print_refusals(refusals: Sequence[StartupError]) -> None:
    """Write each refusal as ``error: cause`` and ``fix: …`` to standard error."""
    for refusal in refusals:
        print(f"error: {refusal.cause}", file=sys.stderr)
        if refusal.fix:
            print(f"fix: {refusal.fix}", file=sys.stderr)


def _plain(message: str) -> str:
    """Keep rich from reading brackets in the text as its markup."""
    from rich.markup import escape

    return escape(message)
