"""The kit itself: what it covers, what it says when it cannot run, and that sound backends pass it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from tests.testing.kit import install, run_kit
from tgi_core.contract import Capabilities, Kernels
from tgi_core.plugins import Plugins
from tgi_core.testing.conformance.cases import OPERATIONS, PART_OF_OTHERS, Bench, Scope, all_cases
from tgi_core.testing.conformance.cases.case import OracleKernels
from tgi_core.testing.conformance.models import model_configs
from tgi_core.testing.conformance.tolerance import difference
from tgi_core.testing.levels import Level
from tgi_core.testing.results import BackendResults, Verification, describe_run, find_results, results_path

_LEVELS = [Level.KERNELS, Level.SHARD, Level.ENGINE]

SMALL = "rms_norm or decode_inputs or test_plugin or neighbours or thousands or mixtral"
"""Something of every level."""


def test_every_operation_of_the_contract_has_cases() -> None:
    assert set(OPERATIONS).isdisjoint(PART_OF_OTHERS)
    assert {*OPERATIONS, *PART_OF_OTHERS} == Kernels.__abstractmethods__
    assert set(PART_OF_OTHERS.values()) <= set(OPERATIONS)


@pytest.mark.parametrize("quick", [False, True])
def test_cases_have_names_of_their_own(quick: bool) -> None:
    labels = [(case.operation, case.label) for case in all_cases(Scope(Capabilities(), quick))]
    assert {operation for operation, _ in labels} == set(OPERATIONS)
    assert len(set(labels)) > 0.9 * len(labels)


def test_every_architecture_has_a_tiny_model() -> None:
    """A new one is an entry of ``tgi_core.testing.conformance.models``."""
    known = {name.partition(",")[0] for name in model_configs(16)}
    assert Plugins.discover().architectures().keys() - known == set()


@pytest.mark.parametrize("backend", ["cpu", "bucketed-cpu", "slots-cpu"])
def test_a_sound_backend_passes_something_of_every_level(tmp_path: Path, backend: str) -> None:
    file = tmp_path / "results.json"
    result = run_kit(tmp_path, backend, "--tgi-quick", "--tgi-results", str(file), "-k", SMALL)
    assert (result.exit_code, result.failed) == (0, {})
    results = msgspec.json.decode(file.read_bytes(), type=BackendResults)
    assert results.run is not None
    assert (results.run.passed, results.run.failed) == (len(result.passed), 0)
    assert results.verification is (Verification.NONE if backend == "cpu" else Verification.SIMULATED)
    assert results.evidence == ("only a part of the conformance kit was run" if backend == "cpu" else "")
    assert [level.value for level in results.run.levels] == ["engine", "kernels", "shard"]


@pytest.mark.parametrize("backend", ["bucketed-cpu", "slots-cpu"])
def test_a_model_that_static_shapes_cannot_do_is_skipped_with_the_reason(tmp_path: Path, backend: str) -> None:
    """Also where replies are compared that are computed in several ways; `--tgi-quick` leaves that model out."""
    result = run_kit(tmp_path, backend, "-k", "test_slots_are_used_again and qwen3_next or test_model and mamba2")
    assert (result.exit_code, result.failed, result.passed) == (0, {}, [])
    assert len(result.skipped) == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "backend", ["cpu", "bucketed-cpu", "slots-cpu", "sound", "sound-with-graphs", "sound-with-flat-decodes"]
)
def test_a_sound_backend_passes_all_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    install(tmp_path / "site", monkeypatch)
    levels = [word for level in ("kernels", "shard", "engine", "perf") for word in ("--tgi-level", level)]
    result = run_kit(tmp_path, backend, "--tgi-quick", *levels)
    assert (result.exit_code, result.failed) == (0, {})


def test_the_null_backend_passes_its_life_cycle(tmp_path: Path) -> None:
    """It declares that it computes nothing: what needs numbers is left out, with that reason."""
    result = run_kit(tmp_path, "null", "--tgi-quick")
    assert (result.exit_code, result.failed) == (0, {})
    assert "test_thousands_of_requests" in result.passed
    assert not any("rms_norm" in name or "model_equals" in name for name in result.passed)


def test_a_backend_without_a_device_is_only_probed(tmp_path: Path) -> None:
    result = run_kit(tmp_path, "xpu", "--tgi-quick")
    assert (result.exit_code, result.failed) == (0, {})
    assert [name.partition("[")[0] for name in result.passed] == ["test_the_plugin_loads_and_probes"] * 3 + [
        "test_probe",
        "test_info",
    ]


@pytest.mark.parametrize("arguments", [(), ("--tgi-backend", "no-such-backend")])
def test_without_a_backend_the_installed_ones_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    code = pytest.main(
        [
            *("--pyargs", "tgi_core.testing", "--rootdir", str(tmp_path), "-c", "/dev/null"),
            *("-p", "no:cacheprovider", "--assert=plain"),
            *arguments,
        ]
    )
    assert code != pytest.ExitCode.OK
    printed = capsys.readouterr()
    names = ", ".join(sorted(Plugins.discover().backends()))
    assert f"Installed are: {names}" in printed.out + printed.err


def test_results_that_cannot_be_read_verify_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Plugins.discover().backends()["cpu"]
    path = results_path(backend)
    assert path is not None
    assert path.name == "kit_results_cpu.json"
    assert path.parent.name == "tgi_cpu"
    monkeypatch.setattr("tgi_core.testing.results.results_path", lambda backend: tmp_path / "broken.json")
    assert "come with it" in find_results(backend).evidence
    (tmp_path / "broken.json").write_text("{")
    assert find_results(backend).verification is Verification.NONE
    assert "cannot be read" in find_results(backend).evidence


def test_a_run_with_failures_verifies_nothing() -> None:
    backend = Plugins.discover().backends()["cpu"]
    counts = {"passed": 8, "failed": 1}
    results = describe_run(
        backend, levels=_LEVELS, quick=False, selected=False, counts=counts, failures=["test_x"], performance=None
    )
    assert results.verification is Verification.NONE
    assert results.run is not None
    assert results.run.failures == ["test_x"]


@pytest.mark.parametrize(
    ("levels", "quick", "selected", "passed", "verification"),
    [
        (_LEVELS, False, False, 8, Verification.HARDWARE),
        (list(Level), False, False, 8, Verification.HARDWARE),
        ([Level.PERF], False, False, 8, Verification.NONE),
        (_LEVELS, True, False, 8, Verification.NONE),
        (_LEVELS, False, True, 8, Verification.NONE),
        (_LEVELS, False, False, 0, Verification.NONE),
    ],
)
def test_only_the_whole_kit_verifies(
    levels: list[Level], quick: bool, selected: bool, passed: int, verification: Verification
) -> None:
    results = describe_run(
        Plugins.discover().backends()["cpu"],
        levels=levels,
        quick=quick,
        selected=selected,
        counts={"passed": passed, "skipped": 3},
        failures=[],
        performance=None,
    )
    assert results.verification is verification


def test_every_mistake_that_is_looked_for_shows() -> None:
    """One that gives the reference's numbers in all cases would never be told."""
    scope, host = Scope(Capabilities(), quick=True), torch.device("cpu")
    unseen, seen = set[tuple[str, str]](), set[tuple[str, str]]()
    for case in all_cases(scope):
        expected = case.run(OracleKernels(), Bench(host, torch.float32))
        for mistake, run in case.suspects.items():
            key = (case.operation, mistake)
            if key in seen:
                continue
            mistaken = run(OracleKernels(), Bench(host, torch.float32))
            shows = any(difference(mistaken[name], tensor, 1e-3) for name, tensor in expected.items())
            (seen if shows else unseen).add(key)
    assert seen
    assert unseen - seen == set()
