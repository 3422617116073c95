"""Options of the conformance kit: ``pytest --pyargs tgi_core.testing --tgi-backend NAME``.

Installed with tgi-serve, so pytest loads it everywhere; without ``--tgi-backend`` it does nothing. Imports no torch.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tgi_core.testing.levels import Level

if TYPE_CHECKING:
    from tgi_core.testing.results import PerformanceReport

LEVEL_MARK = "tgi_level"


class KitOutcome:
    """What a run of the kit has found so far.

    Attributes:
        counts: tests by outcome: "passed", "failed", "skipped".
        failures: ids of the tests that failed.
        performance: figures of level perf; None where it did not run.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.performance: PerformanceReport | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test; called where reports are gathered, also when several workers run the tests."""
        if report.when == "call" or not report.passed:
            self.counts[report.outcome] += 1
            if report.failed:
                self.failures.append(report.nodeid.partition("::")[2])


OUTCOME = pytest.StashKey[KitOutcome]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The kit's options."""
    group = parser.getgroup("tgi-serve", "conformance of a backend of tgi-serve")
    group.addoption("--tgi-backend", metavar="NAME", help="the backend to test, as --backend of tgi-serve takes it")
    group.addoption(
        "--tgi-level",
        action="append",
        choices=[level.value for level in Level],
        help="test one level; may be given several times; all but perf unless given",
    )
    group.addoption("--tgi-quick", action="store_true", help="fewer shapes, models and requests")
    group.addoption("--tgi-results", type=Path, metavar="FILE", help="write what was found as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Make the kit's mark known."""
    config.addinivalue_line("markers", f"{LEVEL_MARK}(level): a level of the conformance kit of tgi-serve")
    outcome = config.stash[OUTCOME] = KitOutcome()
    if config.getoption("--tgi-backend") is not None:
        config.pluginmanager.register(outcome)


def chosen_levels(config: pytest.Config) -> frozenset[Level]:
    """The levels that were asked for."""
    asked = config.getoption("--tgi-level")
    return frozenset(map(Level, asked)) if asked else frozenset(Level) - {Level.PERF}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the levels that were not asked for."""
    if config.getoption("--tgi-backend") is None:
        return
    levels = chosen_levels(config)
    left_out = [item for item in items if (level := _level(item)) is not None and level not in levels]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _level(item: pytest.Item) -> Level | None:
    mark = item.get_closest_marker(LEVEL_MARK)
    return None if mark is None else mark.args[0]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the results where they were asked for."""
    config = session.config
    path, name = config.getoption("--tgi-results"), config.getoption("--tgi-backend")
    is_worker = hasattr(config, "workerinput")
    if path is None or name is None or is_worker:
        return
    from tgi_core.plugins import Plugins
    from tgi_core.testing.results import describe_run, write_results

    backend = Plugins.discover().backends().get(name)
    if backend is not None:
        outcome = config.stash[OUTCOME]
        run = describe_run(
            backend,
            levels=sorted(chosen_levels(config)),
            quick=config.getoption("--tgi-quick"),
            selected=any(config.getoption(option) for option in ("keyword", "markexpr", "deselect")),
            counts=outcome.counts,
            failures=outcome.failures,
            performance=outcome.performance,
        )
        write_results(path, run)
