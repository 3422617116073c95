"""Options that a plugin's backend adds: in the help, in ``explain``, and on their way to its shard."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support.plugins import write_distribution
from tests.support.text_tokenizers import byte_level_json
from tests.unit.cli.test_explain import CONFIG
from tests.unit.cli.test_start import refused, tgi_serve
from tgi_api.cli import main
from tgi_api.cli.backend_options import list_backend_options
from tgi_core.errors import ExitCode
from tgi_core.plugins import Plugins

ABACUS = """
    from tgi_core.contract import BackendInfo, BackendOption, Capabilities, DeviceInfo, Probe, ShapeMode
    from tgi_core.errors import StartupError
    from tgi_core.hookspecs import hookimpl
    from tgi_core.testing.null_backend import NullBackend, NullCosts, NullShard

    BEADS = BackendOption(flag="--abacus-beads", choices=("wood", "glass"), help="What they are made of")

    class Shard(NullShard):
        def warm_up(self, limits):
            spec = self._spec
            beads = BEADS.value(spec.options)
            raise StartupError(f"{beads} {dict(spec.options)} over {spec.world_size}, {limits.strict_shapes}")

    class Abacus(NullBackend):
        info = BackendInfo(name="abacus", title="beads on rods", priority=-1)
        options = (BEADS,)

        def probe(self):
            return Probe(devices=(DeviceInfo(0, "rods", 1), DeviceInfo(1, "rods", 1)))

        def capabilities(self):
            return Capabilities(shape_mode=ShapeMode.BUCKETED, max_world_size=2)

        def create_shard(self, spec):
            return Shard(spec, NullCosts())

    @hookimpl
    def tgi_backends():
        return [Abacus()]
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = write_distribution(tmp_path / "site", "tgi-abacus", "tgi_abacus_plugin", ABACUS)
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(byte_level_json())
    save_file({"x": torch.zeros(64)}, folder / "model.safetensors")
    return folder


def test_help_shows_it_and_still_loads_nothing_heavy(site: Path) -> None:
    code = (
        "import sys; from tgi_api.cli import main; code = main(); "
        "print({'torch', 'transformers', 'jax'} & set(sys.modules)); sys.exit(code)"
    )
    run = tgi_serve("--help", code=code, PYTHONPATH=str(site))
    assert run.returncode == 0
    assert run.stdout.splitlines()[-1] == "set()"
    device = run.stdout.partition("Device and memory:")[2].partition("Scheduling:")[0]
    told = " ".join(device.partition("--abacus-beads ")[2].split())
    assert told.startswith("wood|glass Backend abacus: What they are made of [default: wood] [TGI_SERVE_ABACUS_BEADS]")


def test_help_hides_those_of_simulated_devices_which_can_still_be_given(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ABACUS.replace("priority=-1", "priority=-1, simulated=True")
    monkeypatch.syspath_prepend(write_distribution(tmp_path, "tgi-abacus", "tgi_abacus_plugin", source))
    assert main(["--help"]) == ExitCode.OK
    printed = capsys.readouterr().out
    assert "--strict-shapes" in printed
    assert "--abacus-beads" not in printed
    start = ["explain", "--port", "0", "--model-id", str(model), "--backend", "abacus", "--abacus-beads", "glass"]
    assert main(start) == ExitCode.OK
    assert "glass" in capsys.readouterr().out


@pytest.mark.usefixtures("site")
def test_explain_tells_its_value_and_where_it_comes_from(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*arguments: str) -> tuple[object, object]:
        start = ["explain", "--json", "--port", "0", "--model-id", str(model), "--backend", "abacus"]
        assert main([*start, *arguments]) == ExitCode.OK
        values = {value["name"]: value for value in json.loads(capsys.readouterr().out)["values"]}
        assert values["--num-shard"]["value"] == (2 if "--sharded" in arguments else 1)
        return values["--abacus-beads"]["value"], values["--abacus-beads"]["source"]

    assert told() == ("wood", "default")
    assert told("--abacus-beads", "glass", "--sharded", "true") == ("glass", "command line")
    monkeypatch.setenv("ABACUS_BEADS", "glass")
    assert told() == ("glass", "environment variable ABACUS_BEADS")


@pytest.mark.usefixtures("site")
def test_of_another_backend_it_is_not_told(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["explain", "--port", "0", "--model-id", str(model), "--backend", "null"]
    assert main(start) == ExitCode.OK
    assert "--abacus-beads" not in capsys.readouterr().out
    assert main([*start, "--abacus-beads", "glass"]) == ExitCode.USAGE
    assert "option of backend `abacus`, and `null` is chosen" in capsys.readouterr().err


def test_what_was_asked_for_reaches_the_shard(site: Path, model: Path) -> None:
    run = tgi_serve(
        "--model-id", str(model), "--port", "0", "--backend", "abacus", "--num-shard", "2", "--strict-shapes",
        PYTHONPATH=str(site), TGI_SERVE_ABACUS_BEADS="glass",
    )  # fmt: skip
    assert "glass {'--abacus-beads': 'glass'} over 2, True" in refused(run, ExitCode.FAILURE)


@pytest.mark.parametrize(
    ("right", "wrong", "reason"),
    [
        ('flag="--abacus-beads"', 'flag="--beads"', "must begin with --abacus-"),
        ('choices=("wood", "glass")', "choices=()", "have choices"),
        ('choices=("wood", "glass")', "choices=(1, 2)", "Expected `str`"),
    ],
)
def test_a_plugin_whose_option_is_wrong_is_a_failed_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str, reason: str
) -> None:
    site = write_distribution(tmp_path, "tgi-abacus", "tgi_abacus_plugin", ABACUS.replace(right, wrong))
    monkeypatch.syspath_prepend(site)
    plugins = Plugins.discover()
    assert "abacus" not in plugins.backends()
    assert reason in plugins.failures[0].reason
    assert "--abacus-beads" not in [option.flag for option in list_backend_options(plugins)]


def test_backends_of_one_name_leave_the_help_alone(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_distribution(site, "tgi-other", "tgi_other_abacus", ABACUS)
    assert main(["--help"]) == 0
    assert "--model-id" in capsys.readouterr().out
    sys.modules.pop("tgi_other_abacus")
