"""Discovery: what is found, and what is said when something is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.plugins import MINIMAL_BACKEND, write_distribution
from tgi_core.errors import ExitCode, StartupError
from tgi_core.plugins import Plugins, ask_capabilities
from tgi_core.sampling.rules import RuleSet


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def backend_source(name: str, *, priority: int = 0, devices: bool = True, version: int = 0) -> str:
    return dedent(f'''
        from tgi_core.contract import Backend, BackendInfo, Capabilities, DeviceInfo, Probe
        from tgi_core.hookspecs import hookimpl

        class It(Backend):
            @property
            def info(self):
                return BackendInfo(name="{name}", title="", priority={priority}, contract_version={version})
            def probe(self):
                if {devices}:
                    return Probe(devices=(DeviceInfo(0, "it", 1),))
                return Probe(reason="no driver is loaded", fix="Install the driver.")
            def capabilities(self):
                return Capabilities()
            def open_device(self, local_index):
                raise NotImplementedError

        @hookimpl
        def tgi_backends():
            return [It()]
    ''')


def test_built_ins_come_through_the_same_hooks() -> None:
    plugins = Plugins.discover()
    assert {"cpu", "null"} <= plugins.backends().keys()
    assert "llama" in plugins.architectures()
    assert plugins.failures == ()


def test_a_third_party_backend_is_found(site: Path) -> None:
    write_distribution(site, "tgi-minimal", "tgi_minimal", MINIMAL_BACKEND)
    assert Plugins.discover().choose_backend("minimal").info.title == "a third party's device"


def test_installing_a_plugin_with_negative_priority_changes_nothing(site: Path) -> None:
    write_distribution(site, "tgi-minimal", "tgi_minimal", MINIMAL_BACKEND)
    assert Plugins.discover().choose_backend("auto").info.name == "cpu"


def test_auto_takes_the_usable_backend_of_highest_priority(site: Path) -> None:
    write_distribution(site, "tgi-fast", "tgi_fast_plugin", backend_source("fast", priority=50))
    write_distribution(site, "tgi-absent", "tgi_absent_plugin", backend_source("absent", priority=90, devices=False))
    assert Plugins.discover().choose_backend("auto").info.name == "fast"


def test_an_unknown_backend_lists_the_known_and_the_broken(site: Path) -> None:
    write_distribution(site, "tgi-broken", "tgi_broken_plugin", "import a_vendor_sdk_that_is_not_there")
    with pytest.raises(StartupError) as caught:
        Plugins.discover().choose_backend("nope")
    text = str(caught.value)
    assert "cpu" in text
    assert "null" in text
    assert "tgi-broken" in text
    assert "a_vendor_sdk_that_is_not_there" in text
    assert caught.value.exit_code is ExitCode.BACKEND


def test_a_hook_with_wrong_arguments_is_reported_and_harmless(site: Path) -> None:
    source = """
        from tgi_core.hookspecs import hookimpl

        @hookimpl
        def tgi_backends(no_such_argument):
            return []
    """
    write_distribution(site, "tgi-wrong", "tgi_wrong_plugin", source)
    plugins = Plugins.discover()
    assert [failure.distribution for failure in plugins.failures] == ["tgi-wrong"]
    assert "no_such_argument" in plugins.failures[0].reason
    assert "cpu" in plugins.backends()


def test_no_device_is_told_with_reason_and_fix(site: Path) -> None:
    write_distribution(site, "tgi-absent", "tgi_absent_plugin", backend_source("absent", devices=False))
    with pytest.raises(StartupError) as caught:
        Plugins.discover().choose_backend("absent")
    assert "no driver is loaded" in caught.value.cause
    assert caught.value.fix == "Install the driver."


def test_another_contract_version_is_refused(site: Path) -> None:
    write_distribution(site, "tgi-old", "tgi_old_plugin", backend_source("old", version=99))
    with pytest.raises(StartupError, match="contract 99"):
        Plugins.discover().choose_backend("old")


def test_two_backends_of_one_name_are_refused(site: Path) -> None:
    write_distribution(site, "tgi-one", "tgi_one_plugin", backend_source("same"))
    write_distribution(site, "tgi-two", "tgi_two_plugin", backend_source("same"))
    with pytest.raises(StartupError, match=r"`same`: one of tgi-(one|two) and one of tgi-(one|two)"):
        Plugins.discover().backends()


def test_one_plugin_with_two_backends_of_one_name_is_refused(site: Path) -> None:
    source = backend_source("same").replace("[It()]", "[It(), It()]")
    write_distribution(site, "tgi-one", "tgi_one_plugin_twice", source)
    with pytest.raises(StartupError, match="`same`: one of tgi-one and one of tgi-one"):
        Plugins.discover().backends()


def test_entry_points_of_two_distributions_may_have_one_name(site: Path) -> None:
    """A third party's entry point called `cpu` does not take away what ships."""
    write_distribution(site, "tgi-other", "tgi_other_cpu_plugin", backend_source("other"))
    points = site / "tgi_other-1.0.dist-info" / "entry_points.txt"
    points.write_text("[tgi_serve]\ncpu = tgi_other_cpu_plugin\n")
    plugins = Plugins.discover()
    assert {"cpu", "other"} <= plugins.backends().keys()
    assert plugins.failures == ()


@pytest.mark.parametrize(
    ("right", "wrong", "reason"),
    [
        ("priority=0", "priority=None", "priority"),
        ("contract_version=0", "contract_version='0'", "contract_version"),
        ("return [It()]", "raise SystemExit('no SDK')", "SystemExit: no SDK"),
        ("from tgi_core.contract", "raise SystemExit('no SDK')\nfrom tgi_core.contract", "SystemExit: no SDK"),
    ],
)
def test_what_breaks_a_plugin_is_told_and_harms_no_other(site: Path, right: str, wrong: str, reason: str) -> None:
    write_distribution(site, "tgi-bad", "tgi_bad_plugin", backend_source("bad").replace(right, wrong, 1))
    plugins = Plugins.discover()
    assert plugins.choose_backend("auto").info.name == "cpu"
    assert [failure.distribution for failure in plugins.failures] == ["tgi-bad"]
    assert reason in plugins.failures[0].reason


def raising_source(method: str) -> str:
    return backend_source("bad", priority=999).replace(
        f"def {method}(self):", f"def {method}(self):\n        raise OSError('the driver exploded')", 1
    )


def test_a_backend_whose_probe_raises_harms_no_other(site: Path) -> None:
    """Its plugin breaks the contract; the server starts on the next best, and says why."""
    write_distribution(site, "tgi-bad", "tgi_bad_probe_plugin", raising_source("probe"))
    plugins = Plugins.discover()
    chosen = plugins.choose_backend("auto")
    assert chosen.info.name == "cpu"
    assert "not `bad`, because its plugin is broken (OSError: the driver exploded)" in plugins.explain_auto(chosen)
    with pytest.raises(StartupError, match="Backend `bad` finds no device: its plugin is broken") as refusal:
        plugins.choose_backend("bad")
    assert "Uninstall" in refusal.value.fix


def test_a_backend_whose_capabilities_raise_is_refused(site: Path) -> None:
    write_distribution(site, "tgi-bad", "tgi_bad_capabilities_plugin", raising_source("capabilities"))
    backend = Plugins.discover().choose_backend("bad")
    with pytest.raises(StartupError, match=r"`bad` cannot be used: its plugin is broken \(OSError") as refusal:
        ask_capabilities(backend)
    assert "Uninstall" in refusal.value.fix


def test_discovery_imports_neither_torch_nor_a_vendor_sdk() -> None:
    code = (
        "import sys; from tgi_core.plugins import Plugins; Plugins.discover().backends(); "
        "sys.exit(int('torch' in sys.modules or 'transformers' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def rule_source(name: str, parameter: str) -> str:
    return dedent(f'''
        from tgi_core.hookspecs import hookimpl
        from tgi_core.sampling.rules import LogitsRule, Parameter

        class Rule(LogitsRule):
            name = "{name}"
            parameters = (Parameter("{parameter}", 0.0),)
            def apply(self, scores_BV, rows):
                return scores_BV
            def reference(self, scores, context):
                return list(scores)

        @hookimpl
        def tgi_logits_rules():
            return [Rule()]
    ''')


def test_plugins_rules_run_after_those_that_ship(site: Path) -> None:
    write_distribution(site, "a-rule", "a_rule_plugin", rule_source("mine", "my_number"))
    rules = Plugins.discover().logits_rules()
    assert rules[0].name == "watermark"
    assert rules[-1].name == "mine"
    assert RuleSet(rules).extra_parameters == ("my_number",)


@pytest.mark.parametrize(("name", "parameter"), [("min_p", "my_number"), ("mine", "min_p")])
def test_two_rules_of_one_name_are_refused(site: Path, name: str, parameter: str) -> None:
    write_distribution(site, "twice", f"{name}_{parameter}_plugin", rule_source(name, parameter))
    with pytest.raises(StartupError, match="min_p"):
        Plugins.discover().logits_rules()


def parser_source(name: str) -> str:
    return dedent(f'''
        from tgi_core.hookspecs import hookimpl
        from tgi_core.requests.reasoning import TaggedReasoningParser
        from tgi_core.requests.tools import MarkedToolParser, read_json_calls

        @hookimpl
        def tgi_tool_parsers():
            return [MarkedToolParser("{name}", read_json_calls, markers={{"<x>": ""}})]

        @hookimpl
        def tgi_reasoning_parsers():
            return [TaggedReasoningParser("{name}", "<x>", "</x>")]
    ''')


def test_plugins_parsers_are_asked_after_those_that_ship(site: Path) -> None:
    write_distribution(site, "a-parser", "a_parser_plugin", parser_source("mine"))
    plugins = Plugins.discover()
    assert [parser.name for parser in plugins.tool_parsers()][-2:] == ["json", "mine"]
    assert [parser.name for parser in plugins.reasoning_parsers()][-1] == "mine"
    assert plugins.choose_tool_parser("mine").name == plugins.choose_reasoning_parser("mine").name == "mine"


def test_two_parsers_of_one_name_are_refused(site: Path) -> None:
    write_distribution(site, "p-one", "p_one_plugin", parser_source("mine"))
    write_distribution(site, "p-two", "p_two_plugin", parser_source("mine"))
    for offered in (Plugins.discover().tool_parsers, Plugins.discover().reasoning_parsers):
        with pytest.raises(StartupError, match="`mine`"):
            offered()
