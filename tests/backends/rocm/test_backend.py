"""The ROCm backend on a machine without a GPU: what it says before anything is opened, and what it would open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.backends.cuda.libraries import LoggingDevice
from tests.backends.fake_accelerator import FakeAccelerator
from tgi_core.contract import GraphMode
from tgi_rocm.backend import RocmBackend
from tgi_rocm.probe import probe_devices, probe_torch


def gpu(architecture: str, units: int = 304) -> SimpleNamespace:
    return SimpleNamespace(
        name=f"AMD {architecture}",
        gcnArchName=f"{architecture}:sramecc+:xnack-",
        total_memory=1 << 30,
        multi_processor_count=units,
    )


def fake_torch(*architectures: str, hip: str | None = "7.2") -> Any:
    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(hip=hip),
        cuda=FakeAccelerator("cuda", tuple(gpu(architecture) for architecture in architectures)),
    )


@pytest.fixture
def mi300(monkeypatch: pytest.MonkeyPatch) -> None:
    """One MI300X."""
    monkeypatch.setattr(torch, "cuda", fake_torch("gfx942").cuda)


def test_the_plugin_loads_neither_torch_nor_triton() -> None:
    code = "import sys, tgi_rocm.plugin; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_a_driver_torch_is_not_even_loaded() -> None:
    code = "import sys, tgi_rocm.probe; print(tgi_rocm.probe.probe_devices().fix); sys.exit('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert run.returncode == 0
    assert "amdgpu" in run.stdout


def test_a_torch_without_rocm() -> None:
    probe = probe_torch(fake_torch(hip=None))
    assert probe.devices == ()
    assert "built without ROCm" in probe.reason
    assert "ROCm build of torch" in probe.fix
    assert "PyPI does not have" in probe.fix


def test_no_gpu_that_can_be_used() -> None:
    probe = probe_torch(fake_torch())
    assert probe.devices == ()
    assert "ROCm 7.2" in probe.reason
    assert "HIP_VISIBLE_DEVICES" in probe.fix


@pytest.mark.parametrize("architecture", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1151", "gfx1201"])
def test_a_gpu_that_is_taken(architecture: str) -> None:
    (device,) = probe_torch(fake_torch(architecture)).devices
    assert (device.index, device.name, device.memory_bytes) == (0, f"AMD {architecture}", 1 << 30)


def test_gpus_of_other_architectures_are_left_out() -> None:
    assert [device.index for device in probe_torch(fake_torch("gfx906", "gfx942")).devices] == [1]
    probe = probe_torch(fake_torch("gfx906", "gfx1030"))
    assert probe.devices == ()
    assert "AMD gfx906 (gfx906), AMD gfx1030 (gfx1030)" in probe.reason


def test_a_torch_that_raises_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(torch: object) -> None:
        raise RuntimeError("driver too old")

    monkeypatch.setattr("tgi_rocm.probe.DRIVER", tmp_path)
    monkeypatch.setattr("tgi_rocm.probe.probe_torch", fail)
    assert "driver too old" in probe_devices().reason


def test_a_cuda_build_on_a_machine_with_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The installed torch is no ROCm build."""
    monkeypatch.setattr("tgi_rocm.probe.DRIVER", tmp_path)
    assert "built without ROCm" in probe_devices().reason


def test_what_it_declares() -> None:
    backend = RocmBackend()
    assert (backend.info.name, backend.info.priority) == ("rocm", 90)
    capabilities = backend.capabilities()
    assert capabilities.graph is GraphMode.DECODE
    assert capabilities.dtypes == ("bfloat16", "float16", "float32")
    assert (capabilities.asynchronous, capabilities.run_ahead) == (True, 1)


def test_a_file_of_measured_products_is_used_and_not_added_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_TUNABLEOP_FILENAME", raising=False)
    plain = RocmBackend().process_environment()
    assert plain == {"HIP_FORCE_DEV_KERNARG": "1", "TORCH_BLAS_PREFER_HIPBLASLT": "1"}
    monkeypatch.setenv("PYTORCH_TUNABLEOP_FILENAME", "products.csv")
    tuned = RocmBackend().process_environment()
    assert dict(tuned) == dict(plain) | {"PYTORCH_TUNABLEOP_ENABLED": "1", "PYTORCH_TUNABLEOP_TUNING": "0"}


@pytest.mark.usefixtures("mi300")
def test_the_kernels_are_cut_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    tunings = []
    monkeypatch.setattr(
        "tgi_triton.library_prefill.LibraryPrefillKernels", lambda device, tuning: tunings.append(tuning)
    )
    device = LoggingDevice(torch.device("cuda", 0), [])
    RocmBackend().kernels(device)
    (tuning,) = tunings
    # A wave of 64 lanes: 16 of them are the 1,024 threads a program may have.
    assert (tuning.programs, tuning.sampled_warps) == (304, 16)
    assert not tuning.decode_descriptors
    assert not tuning.dependent_launch
