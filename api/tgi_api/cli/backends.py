"""``backends``: what is installed, what it finds, what it can do, and how far it has been verified."""

from __future__ import annotations

import sys
from typing import Any, cast

import msgspec

from tgi_api.cli.arguments import Arguments
from tgi_api.cli.display import print_refusals
from tgi_api.cli.options import Group, Option
from tgi_api.cli.summary import size_text
from tgi_api.cli.values import boolean
from tgi_core.contract import Capabilities, DeviceInfo
from tgi_core.errors import ExitCode, StartupError
from tgi_core.plugins import Attempt, Plugins, ask_capabilities
from tgi_core.testing.results import BackendResults, find_results

_WIDTH = 110
"""Of the text where the output is no terminal."""


class BackendsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One field for each option of the same name."""

    json: bool = False


BACKENDS_OPTIONS: tuple[Option, ...] = (
    Option(flag="--json", read=boolean, group=Group.OPERATION, help="Print one JSON object"),
)


class BackendReport(msgspec.Struct, frozen=True, kw_only=True):
    """One installed backend.

    Attributes:
        name, title, extra, docs, priority: of its ``info``.
        chosen: ``--backend auto`` takes it here.
        devices: what it finds.
        reason, fix: why it is not taken, and what would help.
        capabilities: what it declares; None where it finds no device.
        results: how far it has been verified, as its release says.
    """

    name: str
    title: str
    extra: str
    docs: str
    priority: int
    chosen: bool
    devices: list[DeviceInfo]
    reason: str
    fix: str
    capabilities: Capabilities | None
    results: BackendResults


class BackendsReport(msgspec.Struct, frozen=True, kw_only=True):
    """All of them, in the order in which ``--backend auto`` tries them, and plugins that failed to load."""

    backends: list[BackendReport]
    failures: list[str]


def backends(arguments: Arguments) -> int:
    """Print the report; returns the exit code."""
    if arguments.refusals:
        print_refusals(arguments.refusals)
        return ExitCode.USAGE
    settings = BackendsSettings(**cast("dict[str, Any]", arguments.values))
    try:
        report = make_report(Plugins.discover())
    except StartupError as error:
        print_refusals([error])
        return error.exit_code
    if settings.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _print(report)
    return ExitCode.OK


def make_report(plugins: Plugins) -> BackendsReport:
    """Ask every backend.

    Raises:
        StartupError: two plugins offer the same name.
    """
    attempts = list(plugins.try_backends(plugins.backends().values()))
    chosen = next((attempt.backend for attempt in attempts if not attempt.obstacle), None)
    return BackendsReport(
        backends=[_report(attempt, chosen=attempt.backend is chosen) for attempt in attempts],
        failures=[
            f"the plugin {failure.name} of {failure.distribution} failed to load: {failure.reason}"
            for failure in plugins.failures
        ],
    )


def _report(attempt: Attempt, *, chosen: bool) -> BackendReport:
    backend, info = attempt.backend, attempt.backend.info
    reason, fix, capabilities = attempt.obstacle, attempt.fix, None
    if attempt.probe.devices:
        try:
            capabilities = ask_capabilities(backend)
        except StartupError as error:
            reason, fix = error.cause, error.fix
    return BackendReport(
        name=info.name,
        title=info.title,
        extra=info.extra,
        docs=info.docs,
        priority=info.priority,
        chosen=chosen,
        devices=list(attempt.probe.devices),
        reason=reason,
        fix=fix,
        capabilities=capabilities,
        results=find_results(backend),
    )


def _print(report: BackendsReport) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    for backend in report.backends:
        mark = " (chosen by --backend auto)" if backend.chosen else ""
        console.print(f"\n[bold]{escape(backend.name)}[/]: {escape(backend.title)}{mark}")
        table = Table.grid(padding=(0, 2))
        for name, value in _rows(backend):
            table.add_row(f"  {name}", escape(value))
        console.print(table)
    for failure in report.failures:
        console.print(f"\nnote: {escape(failure)}")


def _rows(backend: BackendReport) -> list[tuple[str, str]]:
    rows = [("device", f"{device.name}, {size_text(device.memory_bytes)}") for device in backend.devices]
    if backend.reason:
        rows.append(("device" if not backend.devices else "by itself", f"{backend.reason}. {backend.fix}"))
    if backend.capabilities is not None:
        rows.append(("can", describe(backend.capabilities)))
    results = backend.results
    rows.append(("verified", f"{results.verification.value}. {results.evidence}".removesuffix(". ")))
    if results.run is not None:
        run = results.run
        levels = ", ".join(level.value for level in run.levels)
        versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
        rows.append(
            ("kit", f"{run.date} on {run.device}: {run.passed} passed, {run.failed} failed, {run.skipped} skipped")
        )
        rows.append(("", f"levels {levels}; {versions}"))
    return rows


def describe(capabilities: Capabilities) -> str:
    """Capabilities as one line for people."""
    parts = [
        f"{', '.join(capabilities.dtypes)}",
        f"blocks of {', '.join(map(str, capabilities.block_sizes))}",
        f"{capabilities.shape_mode.value} shapes",
    ]
    if capabilities.graph.value != "none":
        parts.append(f"graphs of {capabilities.graph.value}")
    switches = {
        "mixed batches": capabilities.mixed_batches,
        "chunked prefill": capabilities.chunked_prefill,
        "prefix cache": capabilities.prefix_cache,
        "sliding windows": capabilities.sliding_window,
    }
    parts += [name if has else f"no {name}" for name, has in switches.items()]
    if capabilities.batch_invariant_dtypes:
        parts.append(f"bitwise batch-invariant in {', '.join(capabilities.batch_invariant_dtypes)}")
    if len(capabilities.attention) > 1:
        parts.append(f"attention {', '.join(capabilities.attention)}")
    return "; ".join(parts)
