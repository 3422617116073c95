"""The table in docs/backends/README.md, out of what the backends ship.

``python -m tests.support.backend_matrix`` writes it anew.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

from tests.support.generated import replace_part
from tgi_core.contract import Backend, Capabilities
from tgi_core.hookspecs import PROJECT_NAME
from tgi_core.plugins import Plugins
from tgi_core.testing.results import BackendResults, find_results

PAGE = Path(__file__).parents[2] / "docs" / "backends" / "README.md"
START, END = "<!-- table: python -m tests.support.backend_matrix -->\n", "<!-- end of table -->\n"
_COLUMNS = ("backend", "hardware", "extra", "verified", "last run of the kit", "what it declared there")


def table() -> str:
    """The table in Markdown: every backend in the order of ``--backend auto``."""
    rows = [_COLUMNS, ("---",) * len(_COLUMNS), *map(_row, own_backends())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def own_backends() -> list[Backend]:
    """Those of this distribution."""
    points = [point for point in entry_points(group=PROJECT_NAME) if point.dist and point.dist.name == "tgi-serve"]
    found = {
        backend.info.name: backend for point in points for backend in getattr(point.load(), "tgi_backends", tuple)()
    }
    return [attempt.backend for attempt in Plugins.try_backends(found.values())]


def _row(backend: Backend) -> tuple[str, ...]:
    info, results = backend.info, find_results(backend)
    page = info.docs.removeprefix("docs/backends/")
    name = f"[`{info.name}`]({page})" if page else f"`{info.name}`"
    verified = f"{results.verification.value}. {results.evidence}".removesuffix(". ")
    declared = _declared(results.run.capabilities) if results.run is not None else ""
    return name, info.title, f"`[{info.extra}]`" if info.extra else "", verified, _run(results), declared


def _run(results: BackendResults) -> str:
    run = results.run
    if run is None:
        return "none"
    kept = ("tgi-serve", "torch", "triton")
    versions = ", ".join(f"{name} {run.versions[name]}" for name in kept if name in run.versions)
    counts = f"{run.passed} passed, {run.failed} failed, {run.skipped} skipped"
    return f"{run.date} on {run.device}, {versions}: {counts}"


def _declared(capabilities: Capabilities) -> str:
    parts = [", ".join(capabilities.dtypes), f"blocks of {', '.join(map(str, capabilities.block_sizes))}"]
    if capabilities.graph.value != "none":
        parts.append(f"graphs of {capabilities.graph.value}")
    if capabilities.batch_invariant_dtypes:
        parts.append(f"batch-invariant in {', '.join(capabilities.batch_invariant_dtypes)}")
    if not capabilities.computes:
        parts.append("computes nothing")
    return "; ".join(parts)


if __name__ == "__main__":
    replace_part(PAGE, START, END, table())
