"""The TPU backend over the real jax and torchax, on the host in place of TPUs; run by ``make test-backends`` only.

Needs JAX_PLATFORMS=cpu and XLA_FLAGS=--xla_force_host_platform_device_count=2.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental.pallas.ops.tpu.ragged_paged_attention.kernel import ref_ragged_paged_attention
from msgspec.structs import replace
from torch import Tensor

from tgi_core.contract import AttentionSpec, DeviceMemory, DeviceState, ShardLimits, ShardSpec
from tgi_core.contract.kernels import Division
from tgi_core.engine.attention import choose_attention
from tgi_core.reference import ReferenceKernels
from tgi_core.testing.conformance.cases import Bench
from tgi_core.testing.conformance.cases.attention import attention_spec, make_step
from tgi_core.testing.conformance.models import model_configs, write_checkpoint
from tgi_core.testing.conformance.running import Ask, Running
from tgi_tpu.arrays import host_tensor
from tgi_tpu.backend import TpuBackend
from tgi_tpu.device import TpuDevice
from tgi_tpu.executor import Program
from tgi_tpu.kernels import MergedWeight, TpuKernels
from tgi_tpu.lowering import to_array
from tgi_tpu.opening import open_executor

LIMITS = ShardLimits(max_slots=4, max_step_tokens=64, block_size=16, max_total_tokens=128, kv_cache_bytes=1 << 20)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """Shards run in it."""
    with torch.inference_mode():
        yield


@pytest.fixture
def device() -> TpuDevice:
    return TpuDevice(open_executor(1))


def make_state(device: TpuDevice) -> DeviceState:
    columns = [device.zeros((8,), torch.float32) for _ in DeviceState._fields]
    return DeviceState._make(columns)._replace(tokens_SL=device.zeros((4, 6), torch.float32), block_tables=(), kv=())


def values(device: TpuDevice, tensor: Tensor) -> Tensor:
    return device.download(tensor).read()


def test_writes_through_views_count_and_the_state_is_given_away(device: TpuDevice) -> None:
    def work(state: DeviceState, inputs: tuple[Tensor, ...]) -> tuple[DeviceState, tuple[Tensor, ...]]:
        state.tokens_SL[:, :3].index_copy_(0, inputs[0], torch.ones((1, 3), device=inputs[0].device))
        state.tokens_SL.view(2, 12)[1].add_(2)
        state.lengths_S.flatten()[2:4].fill_(5)
        return state, (state.tokens_SL.sum() * 1,)

    state, row = make_state(device), torch.tensor([1])
    step = device.compile(work, state, (device.upload(row),))
    new, [total] = step(state, (device.upload(row),))
    assert values(device, new.tokens_SL).tolist() == [[0.0] * 6, [1.0] * 3 + [0.0] * 3, [2.0] * 6, [2.0] * 6]
    assert values(device, new.lengths_S).tolist() == [0, 0, 5, 5, 0, 0, 0, 0]
    assert values(device, total).item() == 27
    assert to_array(state.tokens_SL).is_deleted()
    # What is not written is not touched.
    assert to_array(new.top_p_S) is to_array(state.top_p_S)


def test_weights_are_arguments_that_programs_share(device: TpuDevice) -> None:
    weight = device.upload(torch.randn(256, 256))

    def product(scale: float, state: DeviceState, inputs: tuple[Tensor, ...]) -> tuple[DeviceState, tuple[Tensor, ...]]:
        return state, (inputs[0] @ weight * scale,)

    state, x = make_state(device), device.upload(torch.randn(2, 256))
    programs = [Program(partial(product, scale), {}, state, (x,)) for scale in (1.0, 2.0)]
    for program in programs:
        assert any(constant is to_array(weight) for constant in program.constants)
        # 256 KiB of numbers would be half a megabyte of text.
        assert len(program.lower(device.executor.mesh).as_text()) < 10_000


def test_whatever_is_compiled_is_counted(device: TpuDevice) -> None:
    before = device.num_compiled
    device.upload(torch.arange(77)) * 3
    assert device.num_compiled > before


def test_a_lost_write_is_an_error(device: TpuDevice) -> None:
    tensor = device.upload(torch.zeros(4, 4))
    with pytest.raises(NotImplementedError, match="writes through a view"):
        tensor.view(16).add_(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_values_come_back(device: TpuDevice, dtype: torch.dtype) -> None:
    tensor = (torch.randn(3, 5) * 3).to(dtype)
    assert torch.equal(values(device, device.upload(tensor)), tensor)
    assert torch.equal(tensor.to(device.torch_device).cpu(), tensor)


SPECS = {
    "plain": attention_spec(8, 2, 128),
    "a window": attention_spec(4, 4, 128, window=9),
    "a soft cap": replace(attention_spec(4, 1, 128), soft_cap=5.0),
}
BATCHES = {"decodes": [(1, 1), (1, 33), (1, 16), (1, 40)], "chunks": [(8, 8), (8, 40), (8, 17)]}


@pytest.mark.parametrize("spec", list(SPECS))
@pytest.mark.parametrize("batch", list(BATCHES))
def test_the_kernel_is_asked_for_the_reference(device: TpuDevice, spec: str, batch: str) -> None:
    """By the kernel's own reference, over a cache that our operations have written; neither of Pallas's interpreters
    runs the kernel itself."""
    check_kernel(device, SPECS[spec], BATCHES[batch])


def check_kernel(device: TpuDevice, spec: AttentionSpec, rows: list[tuple[int, int]]) -> None:
    step = make_step(Bench(torch.device("cpu"), torch.float32), spec, rows, 16)
    expected = ReferenceKernels().attention(step.q_THD, step.cache_NP2KD, step.batch, spec)
    on_device = make_step(Bench(device.torch_device, torch.float32), spec, rows, 16)
    kernels = TpuKernels(device, pallas=True)
    pages = device.zeros(kernels.cache_shape(spec, len(step.cache_NP2KD), 16), torch.float32)
    slots_T = device.upload(torch.arange(len(step.cache_NP2KD) * 16))
    kernels.write_kv(tuple(map(device.upload, step.cache_NP2KD.flatten(0, 1).unbind(1))), pages, slots_T)
    integers = [to_array(tensor).astype(jnp.int32) for tensor in kernels.prepare_attention(on_device.batch, spec)]
    actual = ref_ragged_paged_attention(
        to_array(on_device.q_THD),
        to_array(pages),
        *integers,
        jnp.array([len(rows)], jnp.int32),
        sm_scale=spec.scale,
        sliding_window=spec.window,
        soft_cap=spec.soft_cap,
    )
    torch.testing.assert_close(host_tensor(actual), expected, atol=1e-4, rtol=1e-4)


def test_a_weight_is_divided_part_by_part() -> None:
    device = TpuDevice(open_executor(2))
    kernels = TpuKernels(device, pallas=False)
    weight_NK, x_TK, bias_N = torch.randn(12, 8), torch.randn(3, 8), torch.randn(12)
    packed = kernels.pack_divided(device.upload(weight_NK), Division((8, 4)))
    assert isinstance(packed, MergedWeight)
    assert [to_array(part).addressable_shards[0].data.shape for part in packed.parts] == [(4, 8), (2, 8)]
    expected = torch.nn.functional.linear(x_TK, weight_NK, bias_N)
    torch.testing.assert_close(
        values(device, kernels.linear(device.upload(x_TK), packed, device.upload(bias_N))), expected
    )
    summed = kernels.pack_divided(device.upload(weight_NK), Division(inputs=True))
    assert to_array(summed).addressable_shards[0].data.shape == (12, 4)
    torch.testing.assert_close(
        values(device, kernels.linear(device.upload(x_TK), summed, device.upload(bias_N))), expected
    )
    cache = device.zeros((4, 16, 2, 2, 8), torch.float32)
    assert to_array(cache).addressable_shards[0].data.shape == (4, 16, 2, 1, 8)


def test_two_devices_give_the_tokens_of_one(tmp_path: Path) -> None:
    assert len(jax.local_devices()) >= 2
    write_checkpoint(tmp_path, model_configs(16)["llama"])
    asks = [Ask(list(range(10, 10 + length)), 8) for length in (3, 20, 1, 40)]
    replies = []
    for world_size in (1, 2):
        backend = TpuBackend()
        choice = choose_attention(backend, "auto", tmp_path, "float32", LIMITS.block_size)
        spec = ShardSpec(model_dir=tmp_path, dtype="float32", world_size=world_size, attention=choice)
        shard = backend.create_shard(spec)
        shard.load(lambda done_bytes, total_bytes: None)
        budget = shard.warm_up(LIMITS)
        replies.append(Running(shard, budget, backend.capabilities(), LIMITS).serve(asks))
        assert shard.late_compiles == 0
        shard.close()
    one, two = replies
    assert [reply.token_ids for reply in one] == [reply.token_ids for reply in two]
    for reply, other in zip(one, two, strict=True):
        assert reply.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_memory_of_tpus(device: TpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the fullest device has left, for all of them; the peak is that of programs compiled since it was reset."""

    class Chip:
        def __init__(self, used_bytes: int) -> None:
            self.used_bytes = used_bytes

        def memory_stats(self) -> dict[str, int]:
            return {"bytes_in_use": self.used_bytes, "bytes_limit": 16_000, "peak_bytes_in_use": 15_000}

    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr(type(device.executor), "devices", [Chip(1000), Chip(1500)])
    device.reset_peak()
    assert device.memory() == DeviceMemory(29_000, 32_000, 3000)
    device.executor.temporary_bytes = 300
    assert device.memory().peak_bytes == 3600
    device.reset_peak()
    assert device.memory().peak_bytes == 3000


def test_programs_say_what_they_take(device: TpuDevice) -> None:
    def work(state: DeviceState, inputs: tuple[Tensor, ...]) -> tuple[DeviceState, tuple[Tensor, ...]]:
        return state, (inputs[0] @ inputs[0].t(),)

    device.reset_peak()
    device.compile(work, make_state(device), (device.upload(torch.ones(256, 2)),))
    assert device.executor.temporary_bytes >= 256 * 256 * 4
