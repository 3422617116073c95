"""Level shard: a device that compiles for static shapes runs what it has compiled, counts it, and keeps its outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tgi_core.contract import Device, DeviceState, HostCopy, ShapeMode
from tgi_core.testing.conformance.comparison import ConformanceError
from tgi_core.testing.conformance.models import model_configs, write_checkpoint
from tgi_core.testing.conformance.running import check_late_compiles, make_asks, start
from tgi_core.testing.conformance.subject import Subject
from tgi_core.testing.levels import Level

pytestmark = pytest.mark.tgi_level(Level.SHARD)

_SIZES = (8, 24)


@torch.inference_mode()
def test_compiled_steps(computing: Subject) -> None:
    """What one call leaves in the state the next one finds; what it returns the next one does not change."""
    if computing.capabilities.shape_mode is not ShapeMode.BUCKETED:
        pytest.skip("the device takes any shape")
    device = computing.device
    state = _make_state(device)
    results: list[tuple[HostCopy, ...]] = []
    expected: list[tuple[Tensor, ...]] = []
    total = torch.zeros(1)
    before = device.num_compiled
    for size in _SIZES:
        inputs = [torch.arange(size, dtype=torch.float32) + number for number in range(3)]
        step = device.compile(_add_up, state, (device.upload(inputs[0]),))
        state, outputs = step(state, (device.upload(inputs[0]),))
        compiled = device.num_compiled
        called = [outputs]
        for values in inputs[1:]:
            state, outputs = step(state, (device.upload(values),))
            called.append(outputs)
        for values in inputs:
            total += values.sum()
            expected.append((values * 2, total.clone()))
        results += [tuple(device.download(output) for output in outputs) for outputs in called]
        device.record_event().synchronize()
        if device.num_compiled != compiled:
            raise ConformanceError(
                f"num_compiled goes from {compiled} to {device.num_compiled} when a step is called again with the "
                "shapes that it was compiled for and has been called with."
            )
    for copies, wanted_outputs in zip(results, expected, strict=True):
        for index, (copy, wanted) in enumerate(zip(copies, wanted_outputs, strict=True)):
            actual = copy.read()
            if actual.shape != wanted.shape or not torch.allclose(actual.float(), wanted):
                raise ConformanceError(_explain(actual, wanted, [pair[index] for pair in expected]))
    if not before < compiled:
        raise ConformanceError(
            f"num_compiled is {before} before and {compiled} after {len(_SIZES)} steps were compiled: what is compiled "
            "while requests wait would go unnoticed."
        )


def test_no_step_waits_for_a_compiler(computing: Subject, tmp_path: Path) -> None:
    """Whether shapes are prepared meanwhile or not."""
    if computing.capabilities.shape_mode is ShapeMode.DYNAMIC:
        pytest.skip("the device takes any shape")
    write_checkpoint(tmp_path, model_configs(computing.head_dim)["llama"])
    with start(computing.backend, tmp_path, computing.exact_dtype) as running:
        asks = make_asks(running)
        running.serve(asks)
        running.serve(asks, run_ahead=0, idles=True)
        check_late_compiles(running)


def _add_up(state: DeviceState, inputs: tuple[Tensor, ...]) -> tuple[DeviceState, tuple[Tensor, ...]]:
    state.temperature_S.add_(inputs[0].sum())
    return state, (inputs[0] * 2, state.temperature_S[:1] + 0.0)


def _make_state(device: Device) -> DeviceState:
    columns = [device.zeros((3,), torch.float32) for _ in DeviceState._fields]
    return DeviceState._make(columns)._replace(block_tables=(), kv=(device.zeros((2, 2), torch.float32),), states=())


def _explain(actual: Tensor, wanted: Tensor, others: list[Tensor]) -> str:
    text = f"A compiled step gives {actual.tolist()} and not {wanted.tolist()}."
    if any(actual.shape == other.shape and torch.allclose(actual.float(), other) for other in others):
        text += " That is what another call of it gives: outputs do not stay until their step is collected."
    return text
