"""The fake SDK is as strict as the card: each of its rules catches what breaks it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.usefixtures("card")

HPU = torch.device("hpu", 0)


def hpu() -> Any:
    return torch.hpu  # type: ignore[attr-defined]


def mark_step() -> None:
    from habana_frameworks.torch import core

    core.mark_step()


def on_card(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, device=HPU)


class Module(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any) -> Any:
        return self._function(*args)


def wrap(function: Callable[..., Any], **options: Any) -> Any:
    mark_step()
    return hpu().wrap_in_hpu_graph(Module(function), **options)


def record(function: Callable[..., Any], *inputs: Any) -> Any:
    """Record it, and run it once."""
    return wrap(function, disable_tensor_cache=True)(*inputs)


def refused(text: str) -> Any:
    from fake_hpu.machine import HpuError

    return pytest.raises(HpuError, match=text)


def test_names_that_the_sdk_does_not_have_are_missing() -> None:
    import habana_frameworks.torch as htorch

    for module, name in ((hpu(), "empty_cache"), (htorch.core, "step"), (htorch, "hpex_kernels")):
        with pytest.raises(AttributeError):
            getattr(module, name)
    with pytest.raises(ModuleNotFoundError):
        import habana_frameworks.torch.graphs  # noqa: F401


def test_operations_have_the_schemas_of_the_sdk() -> None:
    x = on_card([[1.0, 2.0]]).to(torch.float8_e4m3fn)
    with pytest.raises(RuntimeError, match="missing value for argument 'trans_B'"):
        torch.ops.hpu.fp8_gemm_v2(x, False, x)
    with pytest.raises(TypeError, match="wrap_in_hpu_graph"):
        hpu().wrap_in_hpu_graph(Module(abs), static=True)
    with pytest.raises(TypeError, match=r"no torch\.nn\.Module"):
        hpu().wrap_in_hpu_graph(abs)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (lambda x: x.sum().item(), "the host reads values"),
        (lambda x: x.cpu(), "the host reads values"),
        (lambda x: x.to("cpu", non_blocking=True), "a copy to the host"),
        (lambda x: x if x.sum() > 0 else -x, "the host reads values"),
        (lambda x: x[x > 0], "depends on values"),
        (lambda x: x.nonzero(), "depends on values"),
        (lambda x: x + torch.ones(2).to(HPU), "a copy from the host"),
        (lambda x: x + torch.tensor([1.0, 2.0], device=HPU), "a copy from the host"),
        (lambda x: mark_step(), "a mark step"),
        (lambda x: hpu().synchronize(), "waiting for the device"),
        (lambda x: hpu().Event().record(), "an event"),
    ],
)
def test_what_a_recording_does_not_allow(problem: Callable[[Tensor], Any], text: str) -> None:
    problem_free = on_card([1.0, 2.0])
    with refused(text):
        record(problem, problem_free)


def test_views_of_outside_tensors_are_not_changed_in_a_recording(card: Any) -> None:
    table = torch.zeros(4, 2, device=HPU)
    with refused("changes a view"):
        record(lambda x: table[:1].copy_(x[None]), on_card([1.0, 2.0]))
    record(lambda x: table.index_copy_(0, torch.zeros(1, dtype=torch.int64, device=HPU), x[None]), on_card([1.0, 2.0]))
    assert table.tolist()[0] == [1.0, 2.0]


def test_a_key_is_shapes_and_python_values(card: Any) -> None:
    step, before = wrap(lambda x, factor: x * factor, disable_tensor_cache=True), card.captures
    for values, factor in (([1.0], 2), ([3.0], 2), ([1.0], 3), ([1.0, 2.0], 2)):
        mark_step()
        step(on_card(values), factor)
    assert card.captures - before == 3
    mark_step()
    assert step(on_card([5.0]), 2).tolist() == [10.0]
    for factor in (2.0, 3.0):
        mark_step()
        step(on_card([1.0]), on_card([factor]))
    assert card.captures - before == 4


@pytest.mark.parametrize("without_cache", [True, False])
def test_a_replay_overwrites_what_the_last_one_returned(without_cache: bool) -> None:
    step = wrap(lambda x: x + 1, disable_tensor_cache=without_cache)
    first = step(on_card([1.0]))
    assert first.tolist() == [2.0]
    second = step(on_card([10.0]))
    assert second is first
    assert first.tolist() == [11.0]


def test_a_dry_recording_leaves_everything_as_it_was(card: Any) -> None:
    total = on_card([1.0])
    graph = hpu().HPUGraph()
    with hpu().graph(graph, dry_run=True):
        total.add_(1)
        doubled = total * 2
    assert total.tolist() == [1.0]
    assert doubled.isnan().all()
    mark_step()
    graph.replay()
    assert (total.tolist(), doubled.tolist()) == ([2.0], [4.0])


def test_python_does_not_run_again() -> None:
    runs = []

    def work(x: Tensor) -> Tensor:
        runs.append(len(runs))
        return x + len(runs)

    step = wrap(work, disable_tensor_cache=True)
    assert [step(on_card([number])).tolist() for number in (0.0, 5.0)] == [[1.0], [6.0]]
    assert runs == [0]


def test_what_is_no_output_is_gone() -> None:
    kept = []

    def work(x: Tensor) -> Tensor:
        kept.append(x * 2)
        return kept[0] + 1

    record(work, on_card([1.0]))
    with refused("none of its outputs"):
        kept[0] + 1


def test_a_bound_on_graphs_runs_without_them(card: Any) -> None:
    step, before = wrap(lambda x: x + 1, max_graphs=1), card.captures
    for values in ([1.0], [1.0, 2.0]):
        assert step(on_card(values)).tolist() == [value + 1 for value in values]
    mark_step()
    assert step(on_card([1.0, 2.0, 3.0]), bypass_hpu_graphs=True).tolist() == [2.0, 3.0, 4.0]
    assert card.captures - before == 1


def test_lazy_operations_wait_for_a_mark_step() -> None:
    x = on_card([1.0])
    x + 1
    for wait in (hpu().synchronize, hpu().Event().record, lambda: x.to("cpu", non_blocking=True)):
        with refused("wait for a mark step"):
            wait()
    with refused("wait for a mark step"):
        hpu().wrap_in_hpu_graph(Module(lambda x: x))(x)
    mark_step()
    hpu().synchronize()


def test_copies_arrive_when_an_event_has_passed() -> None:
    x = on_card([1.0])
    host = x.to("cpu", non_blocking=True)
    assert host.isnan().all()
    event = hpu().Event()
    with refused("not recorded"):
        event.synchronize()
    event.record()
    x.fill_(7.0)
    event.synchronize()
    assert host.tolist() == [1.0]


def test_the_same_work_is_compiled_once(card: Any) -> None:
    from habana_frameworks.torch.hpu.metrics import metric_global, metric_localcontext

    before = dict(metric_global("graph_compilation").stats())["TotalNumber"]
    counts = []
    for values in ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [1.0] * 5):
        x = on_card(values)
        x * 3.25
        mark_step()
        counts.append(dict(metric_global("graph_compilation").stats())["TotalNumber"] - before)
    assert counts == [1, 1, 2]
    with metric_localcontext("graph_compilation") as metric:
        assert dict(metric.stats())["TotalNumber"] == 0
    with pytest.raises(ValueError, match="no metric"):
        metric_global("compilations")


def test_host_and_card_do_not_mix() -> None:
    with refused("on the host"):
        on_card([1.0, 2.0]) + torch.ones(2)
    assert (on_card([1.0]) + torch.tensor(1.0)).tolist() == [2.0]


def test_without_support_numbers_are_cut_to_32_bits(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.tensor([5, (1 << 40) + 7])
    assert numbers.to(HPU).tolist() == numbers.tolist()
    monkeypatch.setattr(card, "has_int64", False)
    assert numbers.to(HPU).tolist() == [5, 7]


def test_nothing_is_pinned() -> None:
    with refused("pinned"):
        on_card([1.0]).pin_memory()


def test_memory_is_counted_to_the_byte(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    free_bytes, total_bytes = hpu().mem_get_info()
    hpu().reset_peak_memory_stats()
    x = torch.zeros(1000, dtype=torch.uint8, device=HPU)
    view = x[10:20]
    assert hpu().mem_get_info() == (free_bytes - 1000, total_bytes)
    copy = x.clone()
    del x, copy
    assert hpu().mem_get_info() == (free_bytes - 1000, total_bytes)
    assert hpu().memory_stats()["MaxInUse"] == total_bytes - free_bytes + 2000
    del view
    assert hpu().mem_get_info() == (free_bytes, total_bytes)
    monkeypatch.setattr(card, "total_bytes", total_bytes - free_bytes + 500)
    with pytest.raises(torch.OutOfMemoryError, match="1000 bytes"):
        torch.zeros(1000, dtype=torch.uint8, device=HPU)
    assert hpu().mem_get_info()[0] == 500


def test_outside_of_lazy_mode_there_are_no_graphs(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "is_lazy", False)
    with refused("lazy mode alone"):
        record(lambda x: x, on_card([1.0]))


def test_the_environment_comes_before_the_first_tensor() -> None:
    from habana_frameworks.torch import core

    x = on_card([1.0])
    with pytest.raises(RuntimeError, match="before tensors"):
        core.hpu_inference_set_env()
    assert x.tolist() == [1.0]
