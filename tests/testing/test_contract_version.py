"""Plugins of other contracts, and the choice among backends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.plugins import write_distribution
from tests.unit.test_plugins import backend_source
from tgi_core import contract
from tgi_core.errors import ExitCode, StartupError
from tgi_core.plugins import Plugins

NO_CAPABILITIES = """
from tgi_core.contract import Backend, BackendInfo, Probe
from tgi_core.hookspecs import hookimpl

class Old(Backend):
    info = BackendInfo(name="old", title="")
    def probe(self):
        return Probe()

@hookimpl
def tgi_backends():
    return [Old()]
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.mark.parametrize(
    ("version", "advice"), [(4, "Install a newer tgi-serve"), (1, "a newer release of the plugin")]
)
def test_a_plugin_of_another_contract_is_refused_with_what_to_install(
    site: Path, monkeypatch: pytest.MonkeyPatch, version: int, advice: str
) -> None:
    monkeypatch.setattr("tgi_core.plugins.CONTRACT_VERSION", 3)
    monkeypatch.setattr("tgi_core.plugins.OLDEST_CONTRACT_VERSION", 2)
    write_distribution(site, "tgi-other", f"tgi_other_{version}_plugin", backend_source("other", version=version))
    with pytest.raises(StartupError, match=f"was written for contract {version}") as refusal:
        Plugins.discover().choose_backend("other")
    assert refusal.value.exit_code is ExitCode.BACKEND
    assert advice in refusal.value.fix


@pytest.mark.parametrize("version", [2, 3])
def test_a_plugin_of_a_contract_still_in_use_runs(site: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    monkeypatch.setattr("tgi_core.plugins.CONTRACT_VERSION", 3)
    monkeypatch.setattr("tgi_core.plugins.OLDEST_CONTRACT_VERSION", 2)
    write_distribution(site, "tgi-fine", f"tgi_fine_{version}_plugin", backend_source("fine", version=version))
    assert Plugins.discover().choose_backend("fine").info.name == "fine"


def test_the_versions_in_use() -> None:
    assert 0 <= contract.OLDEST_CONTRACT_VERSION <= contract.CONTRACT_VERSION


def test_a_plugin_that_lacks_a_method_of_the_contract_harms_nobody(site: Path) -> None:
    write_distribution(site, "tgi-old", "tgi_without_capabilities", NO_CAPABILITIES)
    plugins = Plugins.discover()
    assert plugins.choose_backend("cpu").info.name == "cpu"
    assert [failure.distribution for failure in plugins.failures] == ["tgi-old"]
    assert "capabilities" in plugins.failures[0].reason
    with pytest.raises(StartupError, match="tgi-old failed to load"):
        plugins.choose_backend("old")
    assert len(plugins.failures) == 1, "told once, however often it is asked"


@pytest.mark.parametrize("names", [("b", "a"), ("a", "b")])
def test_of_equal_priorities_the_name_decides(site: Path, names: tuple[str, str]) -> None:
    for order, name in enumerate(names):
        write_distribution(site, f"tgi-{order}", f"tgi_plugin_{name}", backend_source(name, priority=500))
    assert Plugins.discover().choose_backend("auto").info.name == "a"


def test_auto_says_why(site: Path) -> None:
    write_distribution(site, "tgi-absent", "tgi_absent_plugin", backend_source("absent", priority=900, devices=False))
    write_distribution(site, "tgi-newer", "tgi_newer_plugin", backend_source("newer", priority=800, version=99))
    write_distribution(site, "tgi-fast", "tgi_fast_plugin", backend_source("fast", priority=700))
    plugins = Plugins.discover()
    chosen = plugins.choose_backend("auto")
    assert plugins.explain_auto(chosen) == (
        "Backend `fast` is chosen automatically: not `absent`, because no driver is loaded; "
        f"not `newer`, because it was written for contract 99, and this tgi-serve has {contract.CONTRACT_VERSION}."
    )
    write_distribution(site, "tgi-best", "tgi_best_plugin", backend_source("best", priority=1000))
    plugins = Plugins.discover()
    assert "highest priority" in plugins.explain_auto(plugins.choose_backend("auto"))
