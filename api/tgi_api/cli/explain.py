"""``explain``: what a server would run with, and why, without starting it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from tgi_api.cli.arguments import Arguments
from tgi_api.cli.display import Display, LogDisplay, make_display, print_refusals
from tgi_api.cli.explanation import Explanation, explain_attention, explain_backends, explain_values
from tgi_api.cli.inspection import Inspection
from tgi_api.cli.launcher_options import LAUNCHER_OPTIONS
from tgi_api.cli.listener import bind_port
from tgi_api.cli.options import Group, Option
from tgi_api.cli.serve import begin_start, find_served_model
from tgi_api.cli.settings import ServeSettings
from tgi_api.cli.values import boolean
from tgi_core.errors import ExitCode, StartupError
from tgi_core.logs import configure_logging, silence_logging
from tgi_core.plugins import Plugins

_WIDTH = 120
"""Of the tables where the output is no terminal."""


class ExplainSettings(ServeSettings, frozen=True, kw_only=True):
    """Those of a server, and how to show them."""

    json: bool = False


EXPLAIN_OPTIONS: tuple[Option, ...] = (
    *LAUNCHER_OPTIONS,
    Option(flag="--json", read=boolean, group=Group.OPERATION, help="Print one JSON object"),
)


def explain(arguments: Arguments) -> int:
    """Print every effective value with its source, or refuse as a start would; returns the exit code."""
    settings = ExplainSettings(**cast("dict[str, Any]", arguments.values))
    display: Display
    if settings.json:
        silence_logging()
        display = _OnlyRefusals(json_output=False)
    else:
        configure_logging(json_output=settings.json_output, level=settings.log_level)
        display = make_display(json_output=settings.json_output)
    try:
        return _explain(arguments, settings, display)
    except StartupError as error:
        display.refuse([error])
        return error.exit_code
    finally:
        display.close()


def _explain(arguments: Arguments, settings: ExplainSettings, display: Display) -> int:
    plugins = Plugins.discover()
    backend = begin_start(arguments, settings, display, plugins)
    if isinstance(backend, ExitCode):
        return backend
    model_dir = find_served_model(settings, display, weights=False)
    inspection = Inspection(settings, backend, model_dir)
    if inspection.refusals:
        display.refuse(inspection.refusals)
        return inspection.refusals[0].exit_code
    explanation = Explanation(
        model=inspection.model,
        backends=explain_backends(plugins, backend),
        attention=explain_attention(inspection.attention_options, inspection.attention),
        values=explain_values(inspection, arguments.sources, arguments.backend_options),
        warnings=arguments.warnings,
        notes=[*inspection.notes, *_plugin_notes(plugins), *_port_notes(settings)],
    )
    if settings.json:
        print(msgspec.json.format(msgspec.json.encode(explanation), indent=2).decode())
    else:
        _print(explanation)
    return ExitCode.OK


def _plugin_notes(plugins: Plugins) -> list[str]:
    return [
        f"the plugin {failure.name} of {failure.distribution} failed to load: {failure.reason}"
        for failure in plugins.failures
    ]


def _port_notes(settings: ServeSettings) -> list[str]:
    """No refusal: one may well explain a server that runs at this moment."""
    try:
        bind_port(settings.hostname, settings.port).close()
    except StartupError as error:
        return [f"a start at this moment would be refused: {error}"]
    return []


class _OnlyRefusals(LogDisplay):
    """Keeps standard output for the JSON object."""

    def warn(self, message: str) -> None:
        """Part of the object."""

    def info(self, message: str) -> None:
        """Not asked for."""

    def progress(self, description: str, done_bytes: int, total_bytes: int) -> None:
        """Not asked for."""

    def refuse(self, refusals: Sequence[StartupError]) -> None:
        print_refusals(refusals)


def _print(explanation: Explanation) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)

    def show(title: str, rows: Sequence[Sequence[str]]) -> None:
        table = Table.grid(padding=(0, 2))
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(f"\n[bold]{escape(title)}[/]")
        console.print(table)

    show("The model", list(explanation.model.items()))
    show(
        "Backends",
        [
            (
                _mark(found.chosen),
                found.name,
                found.title if found.automatic else f"{found.title}; taken only by name",
                ", ".join(found.devices) or f"no device: {found.reason}. {found.fix}",
            )
            for found in explanation.backends
        ],
    )
    show(
        "Attention",
        [
            (_mark(found.chosen), found.name, f"{found.reason}. {found.fix}" if found.reason else found.remark)
            for found in explanation.attention
        ],
    )
    for group in dict.fromkeys(value.group for value in explanation.values):
        rows = [
            (value.name, _text(value.value), value.source, value.why)
            for value in explanation.values
            if value.group == group
        ]
        show(group, rows)
    if explanation.notes:
        show("Notes", [(note,) for note in explanation.notes])


def _mark(chosen: bool) -> str:
    return "→" if chosen else " "


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "–" if value is None else str(value)
