"""Log lines of every process: one line a record on standard output, as plain text or as JSON with TGI's keys."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

_LEVELS = {
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": logging.DEBUG,
}
_NAMES = {logging.WARNING: "WARN", logging.CRITICAL: "ERROR"}


class JsonFormatter(logging.Formatter):
    """``{"timestamp", "level", "message", "target"}`` and ``"exception"`` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object without line breaks."""
        line = {
            "timestamp": _timestamp(record),
            "level": _NAMES.get(record.levelno, record.levelname),
            "message": record.getMessage(),
            "target": record.name,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class TextFormatter(logging.Formatter):
    """``timestamp LEVEL target: message``, followed by a traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, more with a traceback."""
        level = _NAMES.get(record.levelno, record.levelname)
        text = f"{_timestamp(record)} {level:>5} {record.name}: {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class _StdoutHandler(logging.Handler):
    """Writes to what ``sys.stdout`` is at the time, so that a progress bar which replaces it is not torn."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), flush=True)
        except Exception:  # a log line that cannot be written must not end what it tells of
            self.handleError(record)


class _OwnOrWarning(logging.Filter):
    """Lets through this project's records and its plugins' (``tgi_*``), libraries' from warnings on."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or record.name.startswith("tgi_")


def configure_logging(*, json_output: bool, level: str) -> None:
    """Send this process's log records to standard output; called once, at the start of each process.

    Args:
        json_output: JSON lines instead of text.
        level: error, warn, info, debug or trace.
    """
    handler = _StdoutHandler()
    handler.setFormatter(JsonFormatter() if json_output else TextFormatter())
    handler.addFilter(_OwnOrWarning())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(_LEVELS[level])


def silence_logging() -> None:
    """Drop this process's log records: for a command whose output is one object."""
    logging.getLogger().handlers = [logging.NullHandler()]


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
