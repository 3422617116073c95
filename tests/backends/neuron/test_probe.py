"""What is said on machines of all kinds before anything is loaded."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tgi_core.contract import ShapeMode
from tgi_core.errors import ExitCode
from tgi_neuron import probe
from tgi_neuron.backend import SAMPLING, NeuronBackend

INSTALLED = {"optimum-neuron": "0.4.5", "torch-neuronx": "2.8.0.2.10.16998", "neuronx-cc": "2.21.33363.0"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An inf2.24xlarge with the SDK; changed by tests."""
    (tmp_path / "dev").mkdir()
    for number in range(6):
        (tmp_path / f"dev/neuron{number}").touch()
    (tmp_path / "dev/neuron_rt.log").touch()
    (tmp_path / "sys/devices/virtual/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/devices/virtual/dmi/id/product_name").write_text("inf2.24xlarge\n")
    monkeypatch.setattr(probe, "ROOT", tmp_path)
    monkeypatch.setattr(probe, "PYTHON", (3, 11))
    monkeypatch.delenv("NEURON_RT_NUM_CORES", raising=False)
    monkeypatch.delenv("NEURON_RT_VISIBLE_CORES", raising=False)
    install(monkeypatch)
    return tmp_path


def install(monkeypatch: pytest.MonkeyPatch, **changes: str | None) -> None:
    """Let these releases seem to be installed; None for what is not."""
    found = INSTALLED | {name.replace("_", "-"): release for name, release in changes.items()}

    def version(name: str) -> str:
        release = found[name]
        if release is None:
            raise PackageNotFoundError(name)
        return release

    monkeypatch.setattr(probe, "version", version)


def test_every_core_is_a_device(machine: Path) -> None:
    devices = probe.probe_cores().devices
    assert [device.index for device in devices] == list(range(12))
    assert {(device.name, device.memory_bytes) for device in devices} == {("NeuronCore (inf2.24xlarge)", 16 << 30)}
    assert NeuronBackend().capabilities().max_world_size == 12


def test_the_cores_of_a_trainium_2_work_in_pairs(machine: Path) -> None:
    (machine / "sys/devices/virtual/dmi/id/product_name").write_text("trn2.48xlarge\n")
    assert len(probe.probe_cores().devices) == 24


@pytest.mark.parametrize(
    ("variable", "value", "cores"),
    [
        ("NEURON_RT_NUM_CORES", "4", 4),
        ("NEURON_RT_NUM_CORES", "99", 12),
        ("NEURON_RT_VISIBLE_CORES", "7", 1),
        ("NEURON_RT_VISIBLE_CORES", "4-7", 4),
    ],
)
def test_the_environment_hides_cores(
    machine: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, cores: int
) -> None:
    monkeypatch.setenv(variable, value)
    assert len(probe.probe_cores().devices) == cores


@pytest.mark.parametrize("value", ["all", "", "0", "7-4"])
def test_an_environment_that_leaves_no_core(machine: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES" if value != "0" else "NEURON_RT_NUM_CORES", value)
    found = probe.probe_cores()
    assert found.devices == ()
    assert "NEURON_RT_VISIBLE_CORES" in found.reason


def test_a_machine_that_the_library_does_not_know(machine: Path) -> None:
    (machine / "sys/devices/virtual/dmi/id/product_name").write_text("inf1.xlarge\n")
    found = probe.probe_cores()
    assert "inf1.xlarge" in found.reason
    assert "inf2, trn1, trn1n, trn2" in found.fix
    (machine / "sys/devices/virtual/dmi/id/product_name").unlink()
    assert "an unknown machine" in probe.probe_cores().reason


def test_no_device_and_one_that_a_container_hides(machine: Path) -> None:
    for path in (machine / "dev").iterdir():
        path.unlink()
    assert "no Neuron device" in probe.probe_cores().reason
    (machine / "sys/class/neuron_device/neuron0").mkdir(parents=True)
    assert "--device /dev/neuron0" in probe.probe_cores().fix


@pytest.mark.parametrize(
    ("changes", "reason", "fix"),
    [
        ({"optimum_neuron": None}, "optimum-neuron 0.4.x is needed, and none is", "tgi-serve[neuron]"),
        ({"optimum_neuron": "0.0.13"}, "optimum-neuron 0.4.x is needed, and 0.0.13 is", "tgi-serve[neuron]"),
        ({"torch_neuronx": None}, "torch-neuronx 2.x is needed, and none is", "AWS Neuron's own package index"),
        ({"torch_neuronx": "1.0"}, "torch-neuronx 2.x is needed, and 1.0 is", "what PyPI has"),
        ({"neuronx_cc": "1.0.post1"}, "neuronx-cc 2.x is needed, and 1.0.post1 is", "what PyPI has"),
    ],
)
def test_an_sdk_that_is_not_there_or_empty(
    machine: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], reason: str, fix: str
) -> None:
    install(monkeypatch, **changes)
    found = probe.probe_cores()
    assert found.devices == ()
    assert reason in found.reason
    assert fix in found.fix


def test_a_python_for_which_the_extra_is_empty(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PYTHON", (3, 13))
    found = probe.probe_cores()
    assert "no release for Python 3.13, so that the extra [neuron] is empty" in found.reason
    assert "Python 3.11" in found.fix


def test_the_probe_loads_neither_torch_nor_the_sdk() -> None:
    code = (
        "import sys, pathlib, tgi_neuron.plugin; from tgi_neuron import probe;"
        "probe.ROOT = pathlib.Path(sys.argv[1]); found = probe.probe_cores(); assert found.devices, found;"
        "sys.exit(bool({'torch', 'optimum', 'torch_neuronx'} & set(sys.modules)))"
    )
    fake = Path(__file__).with_name("fake_sdk")
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(fake)!r}); {code}", str(fake / "machine")]
    assert subprocess.run(command, check=False).returncode == 0


def test_the_command_line_refuses_at_once() -> None:
    command = [str(Path(sys.executable).with_name("tgi-serve")), "--model-id", "demo", "--backend", "neuron"]
    started = time.monotonic()
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == ExitCode.BACKEND
    assert "no Neuron device on this machine" in run.stderr
    assert "fix: " in run.stderr
    assert time.monotonic() - started < 2 * 5, "two seconds; this machine may be busy"


def test_what_it_declares() -> None:
    backend = NeuronBackend()
    assert (backend.info.name, backend.info.extra, backend.options) == ("neuron", "neuron", (SAMPLING,))
    capabilities = backend.capabilities()
    assert capabilities.shape_mode is ShapeMode.WHOLE_MODEL
    assert (capabilities.run_ahead, capabilities.chunked_prefill, capabilities.max_world_size) == (1, False, 1)
    assert SAMPLING.value({}) == "host"
