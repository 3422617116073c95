"""The TPU backend on a machine without a TPU and without jax: what it finds, says and declares."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tgi_core.contract import AttentionChoice, AttentionSpec, AttentionUse, ShapeMode, ShardSpec
from tgi_core.errors import ExitCode, StartupError
from tgi_tpu import probe
from tgi_tpu.attention import PADDED, PALLAS, list_options, unfit
from tgi_tpu.backend import TpuBackend


def attention_spec(num_heads: int, num_kv_heads: int, head_dim: int) -> AttentionSpec:
    return AttentionSpec(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, scale=head_dim**-0.5)


USE = AttentionUse(specs=(attention_spec(32, 8, 128),), dtype="bfloat16", block_size=64)


@pytest.fixture(autouse=True)
def no_chips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(probe, "PCI_DEVICES", tmp_path)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Versions that seem to be installed; changed by tests."""
    versions = {"torch": "2.13.0+cpu", "jax": "0.10.2", "torchax": "0.0.14.dev20260814", "libtpu": "0.0.42"}
    monkeypatch.setattr(probe, "_installed", lambda name: versions.get(name, ""))
    return versions


def add_chip(folder: Path, address: str, device: str, vendor: str = "0x1ae0") -> None:
    (folder / address).mkdir()
    (folder / address / "vendor").write_text(f"{vendor}\n")
    (folder / address / "device").write_text(f"{device}\n")


def test_the_plugin_and_its_probe_load_neither_torch_nor_jax() -> None:
    code = (
        "import sys, tgi_tpu.plugin as plugin; [backend] = plugin.tgi_backends(); print(backend.probe().reason);"
        "sys.exit('torch' in sys.modules or 'jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_no_tpu(tmp_path: Path) -> None:
    add_chip(tmp_path, "0000:00:01.0", "0x0063", vendor="0x10de")
    found = TpuBackend().probe()
    assert found.devices == ()
    assert "there is no TPU on this machine" in found.reason
    assert "JAX_PLATFORMS=cpu" in found.fix


def test_chips_are_devices(tmp_path: Path, installed: dict[str, str]) -> None:
    add_chip(tmp_path, "0000:00:04.0", "0x006f")
    add_chip(tmp_path, "0000:00:05.0", "0x006f")
    found = TpuBackend().probe()
    assert [(one.index, one.name, one.memory_bytes >> 30) for one in found.devices] == [
        (0, "TPU v6e", 32),
        (1, "TPU v6e", 32),
    ]
    assert TpuBackend().capabilities().max_world_size == 2


def test_a_chip_of_two_devices(tmp_path: Path, installed: dict[str, str]) -> None:
    add_chip(tmp_path, "0000:00:04.0", "0x0076")
    assert [one.memory_bytes >> 30 for one in TpuBackend().probe().devices] == [96, 96]


@pytest.mark.parametrize("missing", ["torch", "jax", "torchax", "libtpu"])
def test_a_missing_library(tmp_path: Path, installed: dict[str, str], missing: str) -> None:
    add_chip(tmp_path, "0000:00:04.0", "0x0063")
    del installed[missing]
    found = TpuBackend().probe()
    assert found.devices == ()
    assert found.reason == f"{missing} is not installed"
    assert 'pip install "tgi-serve[tpu]"' in found.fix


def test_a_torchax_that_torch_has_outgrown(tmp_path: Path, installed: dict[str, str]) -> None:
    add_chip(tmp_path, "0000:00:04.0", "0x0063")
    installed["torchax"] = "0.0.13"
    found = TpuBackend().probe()
    assert "torchax 0.0.13 cannot be imported with torch 2.13.0" in found.reason
    assert "torchax>=0.0.14.dev20260814" in found.fix
    installed["torch"] = "2.12.1"
    assert TpuBackend().probe().devices


def test_the_host_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, installed: dict[str, str]) -> None:
    assert not TpuBackend().probe().devices
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    del installed["libtpu"]
    backend = TpuBackend()
    assert [one.name for one in backend.probe().devices] == ["CPU in place of a TPU"] * 2
    assert backend.info.simulated
    assert backend.info.priority < 0


def test_what_it_declares() -> None:
    info, capabilities = TpuBackend().info, TpuBackend().capabilities()
    assert (info.name, info.priority, info.simulated) == ("tpu", 95, False)
    assert capabilities.shape_mode is ShapeMode.BUCKETED
    assert capabilities.dtypes == ("bfloat16", "float32")
    assert not capabilities.mixed_batches
    assert (capabilities.asynchronous, capabilities.run_ahead) == (True, 1)


def test_attention() -> None:
    def options(use: AttentionUse, *, on_host: bool = False) -> dict[str, str]:
        return {option.name: option.obstacle for option in list_options(use, on_host=on_host)}

    assert options(USE) == {PALLAS: "", PADDED: ""}
    assert "jax runs on the host" in options(USE, on_host=True)[PALLAS]
    small = replace(USE, specs=(attention_spec(8, 2, 64),))
    assert "this model's have 64" in options(small)[PALLAS]
    sinks = replace(USE, specs=(replace(USE.specs[0], sinks=True),))
    assert "sinks" in options(sinks)[PALLAS]
    capped = replace(USE, specs=(replace(USE.specs[0], soft_cap=30.0, window=128),))
    assert options(capped)[PALLAS] == ""


def test_heads_on_several_devices() -> None:
    assert unfit(USE, 8) == ""
    assert "12 key heads" in unfit(replace(USE, specs=(attention_spec(12, 12, 128),)), 4)


def test_heads_that_cannot_be_divided_are_refused(tmp_path: Path) -> None:
    choice = AttentionChoice(PADDED, "", USE)
    spec = ShardSpec(model_dir=tmp_path, dtype="bfloat16", world_size=3, attention=choice)
    with pytest.raises(StartupError, match="8 key heads cannot be divided among 3 TPUs") as refused:
        TpuBackend().create_shard(spec)
    assert refused.value.exit_code is ExitCode.BACKEND
