"""The card as a device: memory, copies, events, and steps that are recorded once and replayed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tgi_core.contract import CompiledStep, DeviceState
from tgi_core.testing.conformance.models import model_configs, write_checkpoint
from tgi_core.testing.conformance.oracle import Oracle
from tgi_core.testing.conformance.running import make_asks, start
from tgi_core.testing.conformance.tolerance import TOLERANCES
from tgi_core.testing.stand_ins.bucketed import BucketedCpuBackend, BucketedCpuDevice
from tgi_gaudi.device import GaudiDevice
from tgi_gaudi.steps import TracedStep


@pytest.fixture
def device(card: Any) -> GaudiDevice:
    return GaudiDevice(0)


def make_state(device: torch.device) -> DeviceState:
    tables = [torch.zeros(3, device=device) for _ in DeviceState._fields]
    return DeviceState._make(tables)._replace(block_tables=(), kv=(torch.zeros(2, 2, device=device),), states=())


def add_up(state: DeviceState, inputs: tuple[Tensor, ...]) -> tuple[DeviceState, tuple[Tensor, ...]]:
    state.temperature_S.add_(inputs[0].sum())
    return state, (inputs[0] * 2, state.temperature_S + 0)


def test_memory_is_what_the_sdk_says(device: GaudiDevice, card: Any) -> None:
    device.reset_peak()
    before = device.memory()
    tensor = device.zeros((1 << 20,), torch.uint8)
    after = device.memory()
    assert before.free_bytes - after.free_bytes == after.peak_bytes - before.peak_bytes == tensor.nbytes
    assert after.total_bytes == card.total_bytes


def test_copies_and_events(device: GaudiDevice) -> None:
    tensor = device.upload(torch.arange(4.0))
    assert tensor.device == torch.device("hpu", 0)
    doubled = tensor * 2
    copy = device.download(doubled)
    doubled.zero_()
    device.record_event().synchronize()
    assert copy.read().tolist() == [0.0, 2.0, 4.0, 6.0]
    device.synchronize()


def test_a_step_is_recorded_when_it_is_first_called_and_then_replayed(device: GaudiDevice, card: Any) -> None:
    state = make_state(device.torch_device)
    inputs = [device.upload(torch.full((size,), 1.0 + size)) for size in (2, 2, 2)]
    recorded, compiled = card.captures, device.num_compiled
    step = device.compile(add_up, state, (inputs[0],))
    assert state.temperature_S.tolist() == [0.0] * 3
    state, outputs = step(state, (inputs[0],))
    results, known = [outputs], device.num_compiled
    assert known > compiled
    for values in inputs[1:]:
        state, outputs = step(state, (values,))
        results.append(outputs)
    assert card.captures == recorded + 1
    assert device.num_compiled == known
    # Earlier results are still there: the copies are not the graph's own memory.
    assert [outputs[1].tolist() for outputs in results] == [[6.0] * 3, [12.0] * 3, [18.0] * 3]


def test_another_shape_would_be_noticed(device: GaudiDevice) -> None:
    state = make_state(device.torch_device)
    step = device.compile(add_up, state, (device.upload(torch.ones(2)),))
    state, _ = step(state, (device.upload(torch.ones(2)),))
    known = device.num_compiled
    step(state, (device.upload(torch.ones(3)),))
    assert device.num_compiled > known


def test_a_graph_belongs_to_its_state(device: GaudiDevice) -> None:
    state = make_state(device.torch_device)
    step = device.compile(add_up, state, (device.upload(torch.ones(2)),))
    with pytest.raises(AssertionError, match="another state"):
        step(make_state(device.torch_device), (device.upload(torch.ones(2)),))


def test_steps_that_are_watched_are_not_recorded(device: GaudiDevice, card: Any) -> None:
    device.records = False
    state, recorded = make_state(device.torch_device), card.captures
    step = device.compile(add_up, state, (device.upload(torch.ones(2)),))
    step(state, (device.upload(torch.ones(2)),))
    assert card.captures == recorded


def test_outside_of_lazy_mode_steps_are_traced(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "is_lazy", False)
    traced = []
    monkeypatch.setattr("tgi_gaudi.device.TracedStep", lambda work, state: traced.append(work))
    device = GaudiDevice(0)
    device.compile(add_up, make_state(device.torch_device), ())
    assert traced == [add_up]


@cache
def register_compiler() -> list[Any]:
    """A compiler that compiles nothing, under the SDK's name, and the graphs that it is given; torch takes it once."""
    made: list[Any] = []

    def hpu_backend(graph: Any, example_inputs: Any) -> Any:
        made.append(graph)
        return graph.forward

    torch._dynamo.register_backend(hpu_backend, name="hpu_backend")
    return made


@pytest.fixture
def graphs() -> Iterator[list[Any]]:
    """What torch.compile makes while a test runs."""
    from torch._dynamo import config, reset

    made = register_compiler()
    made.clear()
    # What steps change of it is put back.
    kept = {name: getattr(config, name) for name in ("recompile_limit", "accumulated_recompile_limit")}
    with config.patch(**kept):
        yield made
    reset()


@pytest.mark.slow
def test_as_many_steps_are_traced_as_there_are(graphs: list[Any]) -> None:
    """On the host: more than torch keeps of the same code by default."""
    state = make_state(torch.device("cpu"))
    steps = [TracedStep(add_up, state) for _ in range(12)]
    total = 0.0
    with torch.inference_mode():
        for turn in range(2):
            for size, step in enumerate(steps, 2):
                _, outputs = step(state, (torch.ones(size),))
                total += size
                assert outputs[1].tolist() == [total] * 3
            assert len(graphs) == len(steps), f"in turn {turn}"


class TracingBackend(BucketedCpuBackend):
    """The stand-in with static shapes, whose steps go through torch.compile."""

    def open_device(self, local_index: int) -> BucketedCpuDevice:
        return TracingDevice()


class TracingDevice(BucketedCpuDevice):
    def compile(self, work: CompiledStep, state: DeviceState, inputs: tuple[Tensor, ...]) -> CompiledStep:
        return TracedStep(work, state)


@pytest.mark.slow
def test_a_model_s_steps_are_traced_whole(graphs: list[Any], tmp_path: Path) -> None:
    """On the host, and the tokens are the reference's."""
    from torch._dynamo.utils import counters

    counters.clear()
    write_checkpoint(tmp_path, model_configs(16)["llama"])
    with start(TracingBackend(), tmp_path, "float32", max_slots=2) as running:
        traced = len(graphs)
        replies = running.serve(make_asks(running)[:3])
    assert 0 < traced == len(graphs)
    assert counters["graph_break"] == {}
    Oracle(tmp_path).check(replies, TOLERANCES["float32"].logprob, "traced steps")
