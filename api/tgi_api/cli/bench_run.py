"""What the bench commands share: refusals in the usual form, and a report that is written where the user wants it."""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import msgspec

from tgi_api.cli.arguments import Arguments
from tgi_api.cli.display import make_display
from tgi_core.errors import ExitCode, StartupError


class _WithReport(Protocol):
    @property
    def json(self) -> Path | None:
        """Where the report goes."""


Settings = TypeVar("Settings", bound=_WithReport)


def run_bench(
    arguments: Arguments, settings_type: Callable[..., Settings], measure: Callable[[Settings], msgspec.Struct]
) -> int:
    """Measure, and write the report if a file was named; returns the exit code.

    Args:
        arguments: of the command line.
        settings_type: makes the command's settings of them.
        measure: prints its figures and returns its report; may raise StartupError.
    """
    display = make_display(json_output=False)
    try:
        if arguments.refusals:
            display.refuse(arguments.refusals)
            return ExitCode.USAGE
        settings = settings_type(**cast("dict[str, Any]", arguments.values))
        report = measure(settings)
    except StartupError as error:
        display.refuse([error])
        return error.exit_code
    finally:
        display.close()
    if settings.json is not None:
        settings.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return ExitCode.OK


def commas(read: Any) -> Any:
    """A reader of several values with commas between them."""
    return lambda value: tuple(read(part.strip()) for part in value.split(","))


def installed_versions() -> dict[str, str]:
    """Python and the distributions that a figure depends on, as far as they are installed."""
    found = {"python": platform.python_version()}
    for name in ("tgi-serve", "torch", "triton"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
