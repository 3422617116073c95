"""What the conformance kit has found about a backend, as a file that the backend ships; needs no torch.

A backend ``NAME`` keeps it as ``kit_results_NAME.json`` in the package that holds its class. ``tgi-serve backends`` and
the support matrix in the documentation show it.
"""

from __future__ import annotations

import inspect
import platform
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from tgi_core.benchmark.figures import Ceilings, StepFigure
from tgi_core.contract import CONTRACT_VERSION, Backend, Capabilities
from tgi_core.plugins import find_devices
from tgi_core.testing.levels import Level

_WHOLE = frozenset({Level.KERNELS, Level.SHARD, Level.ENGINE})
"""Levels that together are the kit: perf judges nothing."""

_MOST_FAILURES = 20
_DISTRIBUTIONS = ("tgi-serve", "torch", "triton", "pytest")


class Verification(StrEnum):
    """How far a backend has been verified."""

    HARDWARE = "measured on hardware"
    COMPILED = "compiled for it"
    """Its kernels compile for the hardware, which nobody has run them on."""
    SIMULATED = "simulated"
    """Its device is a stand-in on the host."""
    NONE = "not verified"


class HostFigure(msgspec.Struct, frozen=True, kw_only=True):
    """What a step of decodes costs the host.

    Attributes:
        rows: requests in the step.
        step_ms: median time from launch to collect.
        host_ms: median time of launch and sample, which return before the device has run where it is asynchronous.
        operations: calls of the contract's operations; 0 where the step was replayed or the backend has none.
    """

    rows: int
    step_ms: float
    host_ms: float
    operations: int


class PerformanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """Level perf.

    Attributes:
        model: sizes of the model that lent its shapes.
        dtype: of weights and activations.
        ceilings: None where the backend owns whole models.
        steps: operations one by one, where the backend has them.
        host: steps through the shard.
    """

    model: str
    dtype: str
    ceilings: Ceilings | None
    steps: list[StepFigure]
    host: list[HostFigure]


class KitRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the kit.

    Attributes:
        date: year-month-day.
        device: name of the first device.
        levels: those that ran.
        quick: with fewer shapes, models and requests.
        passed, failed, skipped: tests.
        failures: names of tests that failed, the first few.
        versions: of Python and the distributions that matter.
        capabilities: as the backend declared them.
        performance: of level perf.
    """

    date: str
    device: str
    levels: list[Level]
    quick: bool
    passed: int
    failed: int
    skipped: int
    failures: list[str]
    versions: dict[str, str]
    capabilities: Capabilities
    performance: PerformanceReport | None = None


class BackendResults(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend ships.

    Attributes:
        backend: its name.
        contract_version: the contract that was tested.
        verification: how far it got.
        evidence: what was done, one sentence, where no run of the kit says it.
        run: the last run of the kit.
    """

    backend: str
    contract_version: int
    verification: Verification
    evidence: str = ""
    run: KitRun | None = None


def describe_run(
    backend: Backend,
    *,
    levels: Sequence[Level],
    quick: bool,
    selected: bool,
    counts: Mapping[str, int],
    failures: Sequence[str],
    performance: PerformanceReport | None,
) -> BackendResults:
    """The results of a run of the kit that has just ended.

    Args:
        backend: which has a device, or nothing is verified.
        levels: that were asked for.
        quick: fewer shapes, models and requests.
        selected: single tests were asked for.
        counts: tests by outcome.
        failures: ids of the tests that failed.
        performance: figures of level perf.
    """
    devices = find_devices(backend).devices
    run = KitRun(
        date=time.strftime("%Y-%m-%d"),
        device=devices[0].name if devices else "",
        levels=list(levels),
        quick=quick,
        passed=counts.get("passed", 0),
        failed=counts.get("failed", 0),
        skipped=counts.get("skipped", 0),
        failures=list(failures[:_MOST_FAILURES]),
        versions=_versions(),
        capabilities=backend.capabilities() if devices else Capabilities(),
        performance=performance,
    )
    verification, evidence = Verification.HARDWARE, ""
    if backend.info.simulated:
        verification = Verification.SIMULATED
    elif quick or selected or not _WHOLE.issubset(levels):
        verification, evidence = Verification.NONE, "only a part of the conformance kit was run"
    return BackendResults(
        backend=backend.info.name,
        contract_version=CONTRACT_VERSION,
        verification=verification if devices and run.passed and not run.failed else Verification.NONE,
        evidence=evidence,
        run=run,
    )


def write_results(path: Path, results: BackendResults) -> None:
    """Write ``results`` as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")


def results_path(backend: Backend) -> Path | None:
    """Where a backend ships its results; None for one that is no part of a package."""
    module = inspect.getmodule(type(backend))
    if module is None or not module.__package__ or module.__file__ is None:
        return None
    return Path(module.__file__).with_name(f"kit_results_{backend.info.name}.json")


def find_results(backend: Backend) -> BackendResults:
    """What a backend ships; of one that ships nothing, or nothing readable, that it is not verified."""
    path = results_path(backend)
    try:
        if path is not None:
            return msgspec.json.decode(path.read_bytes(), type=BackendResults)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.MsgspecError) as error:
        return _unverified(backend, f"{path} cannot be read: {error}")
    return _unverified(backend, "no results of the conformance kit come with it")


def _unverified(backend: Backend, evidence: str) -> BackendResults:
    return BackendResults(
        backend=backend.info.name,
        contract_version=backend.info.contract_version,
        verification=Verification.NONE,
        evidence=evidence,
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
