"""The Gaudi backend before anything is opened: what it says on a machine without a card, and what it declares."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tgi_core.contract import ShapeMode
from tgi_gaudi.backend import GaudiBackend
from tgi_gaudi.probe import probe_devices


def test_the_plugin_loads_neither_torch_nor_the_sdk() -> None:
    code = (
        "import sys, tgi_gaudi.plugin as plugin; backend, = plugin.tgi_backends(); backend.options; "
        "backend.process_environment(); backend.info; "
        "sys.exit(bool({'torch', 'habana_frameworks', 'pyhlml'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_machine_without_a_card_is_answered_at_once_and_without_torch() -> None:
    code = (
        "import sys, tgi_gaudi.probe as probe; found = probe.probe_devices(); print(found.reason, found.fix); "
        "sys.exit(bool(found.devices) or 'torch' in sys.modules)"
    )
    begin_s = time.monotonic()
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert time.monotonic() - begin_s < 2
    assert run.returncode == 0
    assert "no Gaudi card" in run.stdout
    assert "driver for Gaudi" in run.stdout


def list_cards(folder: Path, *vendors: str) -> None:
    """Accelerators as Linux lists them."""
    for index, vendor in enumerate(vendors):
        device = folder / f"accel{index}" / "device"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")


def test_a_card_without_the_sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tgi_gaudi.probe.CARDS", tmp_path)
    list_cards(tmp_path, "0x1da3")
    probe = probe_devices()
    assert probe.devices == ()
    assert "No module named 'habana_frameworks'" in probe.reason
    assert "container image" in probe.fix
    assert "package index" in probe.fix


def test_other_accelerators_are_no_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tgi_gaudi.probe.CARDS", tmp_path)
    list_cards(tmp_path, "0x8086", "0x1002")
    assert "no Gaudi card" in probe_devices().reason


def test_a_package_that_only_bears_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tgi_gaudi.probe.CARDS", tmp_path)
    list_cards(tmp_path, "0x1da3")
    for name in ("habana_frameworks", "habana_frameworks.torch"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert "no attribute 'hpu'" in probe_devices().reason


def test_cards_that_are_found(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = probe_devices()
    assert [(device.index, device.name, device.memory_bytes) for device in probe.devices] == [
        (0, "Gaudi 2 (a fake)", 96 << 30)
    ]
    monkeypatch.setattr(torch, "hpu", SimpleNamespace(is_available=lambda: False))
    assert "no card it can use" in probe_devices().reason


def test_a_machine_whose_library_finds_no_driver(
    card: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TGI_FAKE_HPU_CARDS", "0")
    assert "no Gaudi card" in probe_devices().reason
    assert capsys.readouterr().out == ""


def test_what_it_declares() -> None:
    backend = GaudiBackend()
    assert (backend.info.name, backend.info.extra, backend.info.priority) == ("gaudi", "gaudi", 85)
    capabilities = backend.capabilities()
    assert capabilities.shape_mode is ShapeMode.BUCKETED
    assert capabilities.dtypes[0] == "bfloat16"
    assert capabilities.block_sizes[0] == 128
    assert not capabilities.mixed_batches
    assert capabilities.buckets.flat_decode
    assert capabilities.buckets.shapes_share == 0.1
    assert capabilities.max_world_size == 1
    assert backend.process_environment() == {"PT_HPU_LAZY_MODE": "1", "PT_ENABLE_INT64_SUPPORT": "1"}
    assert [(option.flag, option.choices) for option in backend.options] == [("--gaudi-fp8", ("off", "dynamic"))]
