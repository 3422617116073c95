"""The CUDA backend on a machine without a GPU: what it says before anything is opened."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tgi_core.contract import GraphMode
from tgi_cuda.backend import CudaBackend
from tgi_cuda.probe import probe_devices, probe_torch


def fake_torch(
    *, cuda: str | None = "13.0", available: bool = True, gpus: tuple[tuple[str, int, int], ...] = ()
) -> Any:
    properties = [
        SimpleNamespace(name=name, major=major, minor=minor, total_memory=1 << 30) for name, major, minor in gpus
    ]
    return SimpleNamespace(
        __version__="2.11.0",
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(
            is_available=lambda: available,
            device_count=lambda: len(properties),
            get_device_properties=properties.__getitem__,
        ),
    )


def test_the_plugin_loads_neither_torch_nor_triton() -> None:
    code = "import sys, tgi_cuda.plugin; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_torch_without_cuda() -> None:
    probe = probe_torch(fake_torch(cuda=None))
    assert probe.devices == ()
    assert "built without CUDA" in probe.reason
    assert "pip install torch" in probe.fix


def test_no_gpu_that_can_be_used() -> None:
    probe = probe_torch(fake_torch(available=False))
    assert probe.devices == ()
    assert "CUDA 13.0" in probe.reason
    assert "nvidia-smi" in probe.fix


def test_gpus_that_are_too_old_are_left_out() -> None:
    probe = probe_torch(fake_torch(gpus=(("T4", 7, 5), ("H200", 9, 0))))
    assert [(device.index, device.name) for device in probe.devices] == [(1, "H200")]


def test_only_old_gpus() -> None:
    probe = probe_torch(fake_torch(gpus=(("T4", 7, 5),)))
    assert probe.devices == ()
    assert "T4 (compute capability 7.5)" in probe.reason
    assert "8.0" in probe.reason


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tgi_cuda.probe.has_driver", lambda: False)
    probe = probe_devices()
    assert probe.devices == ()
    assert "driver" in probe.reason
    assert probe.fix


def test_a_torch_that_raises_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(torch: object) -> None:
        raise RuntimeError("driver too old")

    monkeypatch.setattr("tgi_cuda.probe.has_driver", lambda: True)
    monkeypatch.setattr("tgi_cuda.probe.probe_torch", fail)
    assert "driver too old" in probe_devices().reason


def test_what_it_declares() -> None:
    backend = CudaBackend()
    assert (backend.info.name, backend.info.priority) == ("cuda", 100)
    capabilities = backend.capabilities()
    assert capabilities.graph is GraphMode.DECODE
    assert capabilities.dtypes == ("bfloat16", "float16", "float32")
    assert (capabilities.asynchronous, capabilities.run_ahead) == (True, 1)
