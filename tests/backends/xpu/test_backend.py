"""The XPU backend on a machine without a GPU: what it says before anything is opened, and what it would open."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from tests.backends.cuda.libraries import LoggingDevice, check_paged_call, paged_rows
from tests.backends.fake_accelerator import FakeAccelerator
from tests.backends.triton.support import SMALL, assert_close, attention_spec, make_step
from tgi_core.contract import AttentionChoice, AttentionOption, AttentionUse, GraphMode
from tgi_core.reference import ReferenceKernels
from tgi_triton import TritonKernels, kernels_with, xpu_tuning
from tgi_xpu.attention import VllmXpuKernels, list_options
from tgi_xpu.backend import ATTENTION, XpuBackend
from tgi_xpu.probe import probe_devices, probe_torch

USE = AttentionUse(specs=(attention_spec(32, 8, 128),), dtype="bfloat16", block_size=64)
GPU = SimpleNamespace(name="Intel Arc B580", total_memory=1 << 30, gpu_subslice_count=20)
DEVICE = LoggingDevice(torch.device("xpu", 0), [])


def fake_torch(*gpus: SimpleNamespace, xpu: str | None = "20260100") -> Any:
    return SimpleNamespace(
        __version__="2.13.0", version=SimpleNamespace(xpu=xpu), xpu=FakeAccelerator("xpu", tuple(gpus))
    )


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Which optional libraries seem to be there; changed by tests."""
    modules = {"triton"}
    monkeypatch.setattr("tgi_xpu.attention.has_module", modules.__contains__)
    return modules


def options(use: AttentionUse = USE) -> dict[str, AttentionOption]:
    return {option.name: option for option in list_options(use)}


def taken(use: AttentionUse = USE) -> str:
    """What ``--attention auto`` takes."""
    return next(option.name for option in list_options(use) if option.automatic and not option.obstacle)


def test_the_plugin_loads_neither_torch_nor_triton() -> None:
    code = "import sys, tgi_xpu.plugin; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_a_gpu_torch_is_not_even_loaded(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, tgi_xpu.probe as probe; probe.RENDER_NODES = pathlib.Path(sys.argv[1]);"
        "print(probe.probe_devices().fix); sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0
    assert "Intel's GPU driver" in run.stdout


def test_a_torch_without_support() -> None:
    probe = probe_torch(fake_torch(xpu=None))
    assert probe.devices == ()
    assert "built without support for Intel GPUs" in probe.reason
    assert "xpu index" in probe.fix


def test_no_gpu_that_can_be_used() -> None:
    probe = probe_torch(fake_torch())
    assert probe.devices == ()
    assert "ZE_AFFINITY_MASK" in probe.fix


def test_gpus_that_are_found() -> None:
    found = probe_torch(fake_torch(GPU, GPU)).devices
    assert [(device.index, device.name, device.memory_bytes) for device in found] == [
        (0, "Intel Arc B580", 1 << 30),
        (1, "Intel Arc B580", 1 << 30),
    ]


@pytest.mark.parametrize("raised", [RuntimeError("driver too old"), None])
def test_whatever_torch_says_is_a_reason(
    raised: Exception | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "renderD128").touch()
    monkeypatch.setattr("tgi_xpu.probe.RENDER_NODES", tmp_path)
    if raised is None:
        assert "built without support" in probe_devices().reason
        return

    def fail(torch: object) -> None:
        raise raised

    monkeypatch.setattr("tgi_xpu.probe.probe_torch", fail)
    assert "driver too old" in probe_devices().reason


def test_what_it_declares() -> None:
    backend = XpuBackend()
    assert (backend.info.name, backend.info.priority) == ("xpu", 80)
    capabilities = backend.capabilities()
    assert capabilities.graph is GraphMode.DECODE
    assert capabilities.dtypes == ("bfloat16", "float16", "float32")
    assert (capabilities.asynchronous, capabilities.run_ahead) == (True, 1)


def test_without_graphs_in_torch_or_triton_none_are_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert XpuBackend().capabilities().graph is GraphMode.NONE
    monkeypatch.undo()
    monkeypatch.setattr(torch, "xpu", SimpleNamespace())
    assert XpuBackend().capabilities().graph is GraphMode.NONE


def test_attention_is_intels_then_ours_then_the_reference(modules: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(options()) == sorted(ATTENTION)
    assert taken() == "triton"
    modules.add("vllm_xpu_kernels")
    assert taken() == "vllm-xpu-kernels"
    assert taken(replace(USE, dtype="float32")) == "triton"
    modules.remove("triton")
    assert taken() == "reference"
    assert "Triton is not installed" in options()["vllm-xpu-kernels"].obstacle
    modules.add("intel_extension_for_pytorch")
    assert "needs torch 2.8" in options()["ipex"].obstacle
    monkeypatch.setattr(torch, "__version__", "2.8.0+xpu")
    assert taken() == "ipex"


def test_what_intels_library_does_not_take(modules: set[str]) -> None:
    modules.add("vllm_xpu_kernels")
    for specs, obstacle in {
        (attention_spec(8, 4, 80),): "heads of 80",
        (attention_spec(8, 4, 64, window=128),): "heads of 64",
        (attention_spec(8, 4, 128, soft_cap=50.0),): "soft cap",
    }.items():
        assert obstacle in options(replace(USE, specs=specs))["vllm-xpu-kernels"].obstacle
    windowed = replace(USE, specs=(attention_spec(8, 4, 128, window=128),))
    assert options(windowed)["vllm-xpu-kernels"].obstacle == ""


def test_our_own_kernels_are_cut_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "xpu", fake_torch(GPU).xpu)
    tunings = []
    made = "tgi_triton.library_prefill.LibraryPrefillKernels"
    monkeypatch.setattr(made, lambda device, tuning: tunings.append(tuning))
    XpuBackend().kernels(DEVICE)
    assert tunings == [xpu_tuning(20)]
    assert tunings[0].programs == 20


def test_the_reference_says_so_and_is_not_recorded(modules: set[str]) -> None:
    chosen = XpuBackend().kernels_for(DEVICE, AttentionChoice("reference", "", USE))
    assert not isinstance(chosen, TritonKernels)
    # A "no" binds the reference, with a note, and without graphs.
    assert not chosen.supports("attention", USE.specs[0])
    modules.clear()
    assert not XpuBackend().kernels(DEVICE).supports("attention", USE.specs[0])


def vllm_varlen(  # noqa: PLR0917 - the library's signature
    q: Tensor,
    k: Tensor,
    v: Tensor,
    max_seqlen_q: int,
    cu_seqlens_q: Tensor,
    max_seqlen_k: int,
    *,
    seqused_k: Tensor,
    softmax_scale: float,
    causal: bool,
    window_size: list[int] | None,
    block_table: Tensor,
    out: Tensor,
) -> Tensor:
    """``flash_attn_varlen_func`` of vllm-xpu-kernels 0.1.16 over a paged cache."""
    assert causal
    check_paged_call(q, k, v, {"cu_seqlens_q": cu_seqlens_q, "seqused_k": seqused_k, "block_table": block_table})
    assert k.stride(0) % k.stride(1) == 0, "Paged K page stride must be divisible by K sequence stride"
    assert v.stride() == k.stride()
    starts, kv_lens = cu_seqlens_q.tolist(), seqused_k.tolist()
    assert max_seqlen_q == max(end - begin for begin, end in itertools.pairwise(starts))
    assert max_seqlen_k == max(kv_lens)
    rows = [
        (begin, end, table[: -(-kv_len // k.shape[1])], kv_len)
        for (begin, end), table, kv_len in zip(itertools.pairwise(starts), block_table, kv_lens, strict=True)
    ]
    left = None if window_size is None else window_size[0]
    return out.copy_(paged_rows(q, k, v, rows, scale=softmax_scale, left=left))


@pytest.mark.parametrize("spec", [attention_spec(4, 2, 16), attention_spec(4, 2, 16, window=6)])
@pytest.mark.parametrize("lengths", [[(7, 40), (1, 300), (33, 256)], [(1, 33), (1, 2), (5, 21), (1, 17)], [(1, 9)]])
def test_prefill_rows_through_intels_library_equal_the_reference(
    spec: Any, lengths: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    interface = SimpleNamespace(flash_attn_varlen_func=vllm_varlen)
    monkeypatch.setitem(sys.modules, "vllm_xpu_kernels", SimpleNamespace(flash_attn_interface=interface))
    monkeypatch.setitem(sys.modules, "vllm_xpu_kernels.flash_attn_interface", interface)
    step = make_step(spec, lengths, block_size=64, dtype=torch.float32)
    choice = AttentionChoice("vllm-xpu-kernels", "it is installed", USE)
    kernels = kernels_with(LoggingDevice(torch.device("cpu"), []), SMALL, choice, (VllmXpuKernels(),))
    assert kernels.notes == ("prompts attend through vllm-xpu-kernels: it is installed",)
    actual = kernels.attention(step.q_THD, step.cache_NP2KD, kernels.prepare_attention(step.batch, spec), spec)
    assert_close(actual, ReferenceKernels().attention(step.q_THD, step.cache_NP2KD, step.batch, spec))
