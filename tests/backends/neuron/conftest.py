"""A machine with one Inferentia 2 and the fake SDK, in the test's own process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tgi_core.testing.conformance.models import model_configs, write_checkpoint
from tgi_neuron import probe

FAKE_SDK = Path(__file__).with_name("fake_sdk")
_PACKAGES = ("optimum", "neuronxcc", "torch_neuronx")


def _forget_modules() -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in _PACKAGES:
            del sys.modules[name]


@pytest.fixture
def fake_sdk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The SDK can be imported; exported models are kept in the folder that is returned."""
    _forget_modules()
    monkeypatch.syspath_prepend(FAKE_SDK)
    monkeypatch.setattr(probe, "ROOT", FAKE_SDK / "machine")
    monkeypatch.delenv("NEURON_RT_NUM_CORES", raising=False)
    monkeypatch.delenv("NEURON_RT_VISIBLE_CORES", raising=False)
    monkeypatch.setenv("TGI_SERVE_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache" / "neuron"
    _forget_modules()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny llama."""
    folder = tmp_path / "llama"
    folder.mkdir()
    write_checkpoint(folder, model_configs(16)["llama"])
    return folder
