"""Which attention may be used and which is taken; no library is imported to tell."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from tests.backends.cuda.libraries import LoggingDevice, find_provider
from tests.backends.triton.support import attention_spec
from tgi_core.contract import AttentionChoice, AttentionOption, AttentionUse
from tgi_core.shards.attention_providers import Obstacle, Provider
from tgi_cuda.attention import NAMES, choose
from tgi_cuda.attention.choose import PROVIDERS, list_options
from tgi_cuda.attention.flash_attention_4 import FlashAttention4Prefill
from tgi_cuda.backend import CudaBackend
from tgi_triton import Tuning

USE = AttentionUse(
    specs=(attention_spec(32, 8, 128), attention_spec(32, 8, 128, window=1024)), dtype="bfloat16", block_size=64
)
HOPPER = (9, 0)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All libraries are there."""
    for provider in PROVIDERS:
        monkeypatch.setattr(type(provider), "missing", lambda self: None)


def options(capability: tuple[int, int] = HOPPER, use: AttentionUse = USE) -> dict[str, AttentionOption]:
    return {option.name: option for option in list_options(capability, use)}


def test_every_name_has_its_option_and_our_own_comes_last() -> None:
    assert CudaBackend().capabilities().attention == NAMES
    names = list(options())
    assert sorted(names) == sorted(NAMES)
    assert names[-1] == NAMES[0]


def test_without_a_library_our_own_kernels_are_all_there_is() -> None:
    found = options(use=replace(USE, block_size=256))
    own = found.pop("triton")
    assert (own.obstacle, own.automatic) == ("", True)
    for option in found.values():
        assert "is not installed" in option.obstacle
        assert "pip install" in option.fix
        assert "tgi-serve[" in option.fix
        assert not option.automatic


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("capability", "taken"), [((9, 0), "flash-attn-4"), ((10, 3), ""), ((8, 9), "")])
def test_what_counts_as_faster_is_taken_by_itself(capability: tuple[int, int], taken: str) -> None:
    automatic = [option.name for option in list_options(capability, USE) if option.automatic]
    assert automatic == [name for name in (taken, "triton") if name]


@pytest.mark.usefixtures("installed")
def test_speed_is_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "FASTER", frozenset({("flashinfer", 9)}))
    found = options()
    assert [name for name, option in found.items() if option.automatic] == ["flashinfer", "triton"]
    assert "counts as faster" in found["flashinfer"].remark
    assert "not known to be faster" in found["flash-attn-4"].remark
    assert "9.0" in found["flash-attn-4"].remark


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "capability", "change", "obstacle"),
    [
        ("flash-attn-4", (8, 0), {}, "compute capability"),
        ("flash-attn-4", (12, 0), {}, "not on 12.0"),
        ("flash-attn-4", (10, 0), {"specs": (attention_spec(8, 4, 256),)}, "heads of 256"),
        ("flash-attn-4", HOPPER, {"specs": (attention_spec(256, 1, 64),)}, "at most 128 query heads"),
        ("flash-attn-4", HOPPER, {"specs": (attention_spec(8, 4, 80),)}, "heads of 80"),
        ("flashinfer", HOPPER, {"specs": (attention_spec(8, 4, 96),)}, "heads of 96"),
        ("flash-attn", HOPPER, {}, "KV blocks of 256 tokens, and they have 64"),
        ("flash-attn", HOPPER, {"block_size": 256, "specs": (attention_spec(8, 4, 100),)}, "heads of 100"),
    ],
)
def test_what_a_library_does_not_take(
    name: str, capability: tuple[int, int], change: dict[str, object], obstacle: str
) -> None:
    option = options(capability, replace(USE, **change))[name]
    assert obstacle in option.obstacle
    assert not option.automatic
    assert options(HOPPER, replace(USE, block_size=256))[name].obstacle == ""


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_what_no_library_takes(provider: Provider[tuple[int, int]]) -> None:
    use = replace(USE, block_size=256)
    capped = (*USE.specs, attention_spec(32, 8, 128, soft_cap=50.0))
    assert provider.obstacle(HOPPER, use) is None
    soft_cap = provider.obstacle(HOPPER, replace(use, specs=capped))
    assert soft_cap is not None
    assert "soft cap" in soft_cap.reason
    for terms in ({"alibi_slopes": (0.5,) * 32}, {"sinks": True}, {"latent_values": 64}):
        specs = (replace(attention_spec(32, 8, 128), **terms),)
        added = provider.obstacle(HOPPER, replace(use, specs=specs))
        assert added is not None
        assert ", ".join(specs[0].features) in added.reason
    wide = provider.obstacle(HOPPER, replace(use, dtype="float32"))
    assert wide == Obstacle("it does not compute in float32", "Use --dtype bfloat16.")


def test_flashinfer_needs_a_compiler_or_compiled_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    modules = {"flashinfer"}
    monkeypatch.setattr("tgi_cuda.attention.flash_infer.has_module", lambda name: name in modules)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    missing = find_provider("flashinfer").missing()
    assert missing is not None
    assert "nvcc" in missing.reason
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    assert find_provider("flashinfer").missing() is None
    (tmp_path / "bin" / "nvcc").unlink()
    modules.add("flashinfer_jit_cache")
    assert find_provider("flashinfer").missing() is None


def write_libraries(folder: Path, source: str) -> None:
    """Everything that is looked for, each module made of ``source``."""
    for name in ("flash_attn", "flash_attn/cute", "flashinfer", "cutlass"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(source)
    for name in ("flash_attn_2_cuda", "flashinfer_jit_cache"):
        (folder / f"{name}.py").write_text(source)
    info = folder / "flash_attn_4-4.0.0b36.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn-4\nVersion: 4.0.0b36\n")


def test_no_library_is_imported_to_tell_what_is_there(tmp_path: Path) -> None:
    write_libraries(tmp_path, "raise SystemExit('imported: ' + __name__)")
    code = """
import sys, tgi_cuda.plugin
sys.path.insert(0, sys.argv[1])
assert not any(name.startswith("tgi_cuda.attention.") for name in sys.modules)
from tgi_core.contract import AttentionSpec, AttentionUse
from tgi_cuda.attention.choose import list_options
spec = AttentionSpec(num_heads=8, num_kv_heads=2, head_dim=128, scale=0.1)
found = list_options((9, 0), AttentionUse(specs=(spec,), dtype="bfloat16", block_size=256))
print([(option.name, option.obstacle, option.remark[:23]) for option in found])
"""
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "('flash-attn-4', '', 'flash-attn-4 4.0.0b36 c')" in result.stdout
    assert "('flashinfer', ''" in result.stdout
    assert "('flash-attn', ''" in result.stdout


def test_only_the_chosen_library_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_libraries(tmp_path, "def flash_attn_varlen_func(): ...\n")
    (tmp_path / "flashinfer" / "__init__.py").write_text(
        "class BatchPrefillWithPagedKVCacheWrapper:\n"
        "    def __init__(self, workspace, kv_layout, backend):\n"
        "        assert (kv_layout, backend) == ('NHD', 'fa2')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    device = LoggingDevice(torch.device("cpu"), [])
    for name, modules in {
        "flash-attn-4": {"flash_attn", "flash_attn.cute"},
        "flash-attn": {"flash_attn"},
        "flashinfer": {"flashinfer"},
    }.items():
        try:
            find_provider(name).open(device, USE)
            assert loaded() == modules
        finally:
            for module in loaded():
                del sys.modules[module]
            importlib.invalidate_caches()


def loaded() -> set[str]:
    return {name for name in sys.modules if name.split(".")[0] in {"flash_attn", "flashinfer", "flash_attn_2_cuda"}}


def test_the_backend_asks_for_the_gpu_it_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: {0: (8, 6)}[index])
    found = {option.name: option for option in CudaBackend().attention_options(USE)}
    assert "8.6" in found["flash-attn-4"].obstacle


def test_a_choice_is_opened_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tgi_cuda.kernels.gpu_tuning", lambda device: Tuning())
    monkeypatch.setattr(
        "tgi_cuda.attention.flash_attention_4.FlashAttention4.open",
        lambda self, device, use: FlashAttention4Prefill(lambda: None),
    )
    device = LoggingDevice(torch.device("cpu"), [])
    backend = CudaBackend()
    chosen = backend.kernels_for(device, AttentionChoice("flash-attn-4", "it was asked for", USE))
    assert chosen.notes == ("prompts attend through flash-attn-4: it was asked for",)
    for own in (None, AttentionChoice("triton", "", USE)):
        assert backend.kernels_for(device, own).notes == ()
    assert backend.kernels(device).notes == ()
