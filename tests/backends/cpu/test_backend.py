"""The CPU backend's identity, its view of memory, and its kernels' form of a weight."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tgi_core.contract import ShardSpec
from tgi_core.host_memory import free_memory_bytes, peak_memory_bytes, total_memory_bytes
from tgi_core.plugins import Plugins
from tgi_core.reference import ReferenceKernels
from tgi_core.shards.cpu_device import CpuDevice
from tgi_cpu.backend import CpuBackend
from tgi_cpu.kernels import CpuKernels
from tgi_cpu.linear import PackedLinear, has_fast_bf16
from tgi_cpu.threads import default_threads


def test_the_plugin_offers_it() -> None:
    backend = Plugins.discover().choose_backend("cpu")
    assert isinstance(backend, CpuBackend)
    assert backend.info.priority == 0
    assert backend.probe().devices[0].memory_bytes > 0


def test_importing_the_plugin_imports_no_torch() -> None:
    code = (
        "import sys, tgi_cpu.plugin as p; b = p.tgi_backends()[0]; b.info, b.probe(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_capabilities_follow_the_processor() -> None:
    capabilities = CpuBackend().capabilities()
    assert set(capabilities.dtypes) == {"bfloat16", "float32"}
    assert (capabilities.dtypes[0] == "bfloat16") == has_fast_bf16()
    assert capabilities.batch_invariant_dtypes == (("bfloat16",) if has_fast_bf16() else ())
    assert capabilities.run_ahead == 1
    assert not capabilities.asynchronous


def test_default_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for usable, threads in ((1, 1), (2, 1), (8, 7)):
        monkeypatch.setattr("os.sched_getaffinity", lambda pid, usable=usable: set(range(usable)))
        assert default_threads() == threads


def test_the_backend_chooses_threads_only_when_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("tgi_core.contract.Backend.create_shard", lambda self, spec: seen.append(spec.cpu_threads))
    for threads in (None, 5):
        CpuBackend().create_shard(ShardSpec(model_dir=Path(), dtype="float32", cpu_threads=threads))
    assert seen == [default_threads(), 5]


def fake_system(root: Path, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "proc", root / "cgroup"


MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\n"


def test_memory_without_a_control_group(tmp_path: Path) -> None:
    proc, cgroup = fake_system(tmp_path, {"proc/meminfo": MEMINFO})
    assert total_memory_bytes(proc, cgroup) == 1000 * 1024
    assert free_memory_bytes(proc, cgroup) == 600 * 1024


def test_memory_in_a_version_2_group(tmp_path: Path) -> None:
    """The tightest group upwards counts; file caches that can be dropped are free."""
    proc, cgroup = fake_system(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/outer/inner\n",
            "cgroup/outer/inner/memory.max": "max\n",
            "cgroup/outer/inner/memory.current": "5\n",
            "cgroup/outer/memory.max": "300000\n",
            "cgroup/outer/memory.current": "250000\n",
            "cgroup/outer/memory.stat": "anon 1\ninactive_file 30000\n",
        },
    )
    assert total_memory_bytes(proc, cgroup) == 300_000
    assert free_memory_bytes(proc, cgroup) == 80_000


def test_memory_in_a_version_1_group(tmp_path: Path) -> None:
    proc, cgroup = fake_system(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "9:cpu,cpuacct:/x\n5:memory:/only/on/the/host\n",
            "cgroup/memory/memory.limit_in_bytes": "200000\n",
            "cgroup/memory/memory.usage_in_bytes": "210000\n",
            "cgroup/memory/memory.stat": "total_inactive_file 20000\n",
        },
    )
    assert total_memory_bytes(proc, cgroup) == 200_000
    assert free_memory_bytes(proc, cgroup) == 10_000


def test_peak_memory() -> None:
    device = CpuDevice()
    device.reset_peak()
    before_bytes = device.memory().peak_bytes
    assert before_bytes == pytest.approx(peak_memory_bytes(), rel=0.05)
    block = torch.ones(64 << 20, dtype=torch.uint8)
    del block
    assert device.memory().peak_bytes - before_bytes > 48 << 20


def test_zeros_are_zero_writable_and_cost_nothing_at_first() -> None:
    device = CpuDevice()
    device.reset_peak()
    before_bytes = device.memory().peak_bytes
    cache = device.zeros((1 << 10, 1 << 20), torch.bfloat16)
    assert cache.shape == (1 << 10, 1 << 20)
    assert not cache[::512, ::4096].any()
    cache[3, 5] = 1.5
    assert cache[3, 5].item() == 1.5
    assert device.memory().peak_bytes - before_bytes < 256 << 20


@pytest.mark.parametrize("rows", [1, 3, 16, 65])
@pytest.mark.parametrize("with_bias", [False, True])
def test_packed_linear_equals_the_dense_one(rows: int, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 64, generator=generator).bfloat16()
    x = torch.randn(rows, 64, generator=generator).bfloat16()
    bias = torch.randn(96, generator=generator).bfloat16() if with_bias else None
    kernels, reference = CpuKernels(), ReferenceKernels()
    packed = kernels.pack_linear(weight)
    assert isinstance(packed, PackedLinear)
    assert torch.equal(kernels.linear(x, packed, bias), reference.linear(x, weight, bias))


@pytest.mark.parametrize("inputs", [576, 1024, 1536, 4096])
def test_packed_linear_sums_a_row_alone_as_among_others(inputs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    kernels = CpuKernels()
    weight = kernels.pack_linear((torch.randn(2048, inputs, generator=generator) * 0.04).bfloat16())
    x = torch.randn(33, inputs, generator=generator).bfloat16()
    together = kernels.linear(x, weight, None)
    for rows in (1, 2, 3, 5, 8, 16, 17, 32):
        assert torch.equal(kernels.linear(x[:rows], weight, None), together[:rows])
    for row in range(8):
        assert torch.equal(kernels.linear(x[row : row + 1], weight, None), together[row : row + 1])


def test_float32_weights_stay_dense() -> None:
    weight = torch.zeros(8, 4)
    assert CpuKernels().pack_linear(weight) is weight


def test_a_torch_without_the_operators_is_told_about(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CpuKernels().notes == ()
    monkeypatch.setattr("tgi_cpu.linear.has_packed_linear", lambda: False)
    kernels = CpuKernels()
    assert "half speed" in kernels.notes[0]
    weight = torch.ones(8, 4, dtype=torch.bfloat16)
    assert kernels.pack_linear(weight) is weight
    assert kernels.linear(torch.ones(1, 4, dtype=torch.bfloat16), weight, None).tolist() == [[4.0] * 8]
