"""Runs the conformance kit inside a test's own process, on backends that a test installs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest


class KitResult(NamedTuple):
    """What came of a run: outcomes by test, and the messages of those that failed."""

    exit_code: int
    passed: list[str]
    skipped: list[str]
    failed: dict[str, str]


class _Recorder:
    def __init__(self) -> None:
        self.passed: list[str] = []
        self.skipped: list[str] = []
        self.failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[2]
        if report.failed:
            self.failed[name] = report.longreprtext
        elif report.skipped:
            self.skipped.append(name)
        elif report.when == "call":
            self.passed.append(name)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str = "tests.testing.sabotage") -> None:
    """Let the entry points of this process name ``module`` as a plugin."""
    info = folder / "tgi_sabotage-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tgi-sabotage\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[tgi_serve]\nsabotage = {module}\n")
    monkeypatch.syspath_prepend(folder)


def run_kit(folder: Path, backend: str, *arguments: str) -> KitResult:
    """Run the kit as ``pytest --pyargs tgi_core.testing`` does, with warnings as errors."""
    recorder = _Recorder()
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    code = pytest.main(
        [
            *("--pyargs", "tgi_core.testing", "--tgi-backend", backend),
            *("-c", str(folder / "pytest.ini"), "--rootdir", str(folder), "--basetemp", str(folder / "tmp")),
            *("-p", "no:cacheprovider", "-p", "no:timeout", "-p", "no:schemathesis", "-p", "no:terminal"),
            "--assert=plain",
            *arguments,
        ],
        plugins=[recorder],
    )
    return KitResult(int(code), recorder.passed, recorder.skipped, recorder.failed)
