"""``tgi-serve backends``, and the pages that are made from the same data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import backend_matrix, contract_page
from tests.support.plugins import write_distribution
from tests.unit.test_plugins import backend_source
from tgi_api.cli import main
from tgi_core.errors import ExitCode
from tgi_core.plugins import Plugins
from tgi_core.testing.results import Verification, find_results


def test_every_backend_is_told_with_devices_or_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--json"]) == ExitCode.OK
    report = json.loads(capsys.readouterr().out)
    found = {backend["name"]: backend for backend in report["backends"]}
    assert found.keys() == Plugins.discover().backends().keys()
    assert [name for name, backend in found.items() if backend["chosen"]] == [
        Plugins.discover().choose_backend("auto").info.name
    ]
    for backend in found.values():
        assert bool(backend["devices"]) == (backend["capabilities"] is not None)
        assert backend["devices"] or (backend["reason"] and backend["fix"])
        assert backend["results"]["verification"] in list(Verification)
    assert found["null"]["reason"] == "it is taken only by name"
    assert not found["null"]["capabilities"]["computes"]
    assert report["failures"] == []


def test_the_text_says_what_is_verified(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends"]) == ExitCode.OK
    printed = capsys.readouterr().out
    for backend in Plugins.discover().backends().values():
        assert f"{backend.info.name}: {backend.info.title}"[:60] in printed
        assert find_results(backend).verification.value in printed
    assert "(chosen by --backend auto)" in printed


def test_what_does_not_load_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_distribution(tmp_path, "tgi-broken", "tgi_broken_plugin", "import a_vendor_sdk_that_is_not_there")
    write_distribution(tmp_path, "tgi-new", "tgi_new_plugin", backend_source("new", version=99))
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["backends"]) == ExitCode.OK
    printed = capsys.readouterr().out
    assert "a_vendor_sdk_that_is_not_there" in printed
    assert "contract 99" in printed


def test_backends_in_the_tree_ship_results() -> None:
    """Written by the kit with ``--tgi-results``; the current contract's."""
    for backend in backend_matrix.own_backends():
        results = find_results(backend)
        assert results.backend == backend.info.name
        assert results.contract_version == backend.info.contract_version
        if results.run is not None:
            assert results.run.failed == 0
            assert not results.run.quick


def test_the_support_matrix_is_current() -> None:
    assert backend_matrix.START + backend_matrix.table() + backend_matrix.END in backend_matrix.PAGE.read_text()


def test_the_page_of_the_contract_is_current() -> None:
    assert contract_page.PAGE.read_text() == contract_page.page()


def test_every_page_of_a_backend_exists() -> None:
    root = Path(__file__).parents[2]
    pages = [backend.info.docs for backend in backend_matrix.own_backends() if backend.info.docs]
    assert pages
    assert [page for page in pages if not (root / page).exists()] == []
