"""A strict stand-in for ``torch.cuda`` and ``torch.xpu`` on a machine without a device.

It has the functions that devices use and no others, each with the signature of torch's own, and refuses what a device
would: recording on the default stream, waiting while a graph is recorded, a pool that has no graph.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch


class FakeAccelerator:
    """The module of one device type.

    Args:
        device_type: "cuda" or "xpu".
        devices: torch's properties of each device.

    Attributes:
        log: what streams were given and waited for, in order.
    """

    def __init__(self, device_type: str, devices: tuple[SimpleNamespace, ...] = ()) -> None:
        self._type = device_type
        self._devices = devices
        self._current: Stream = Stream(self, "default")
        self._default = self._current
        self.recording: Graph | None = None
        self.log: list[str] = []
        self.free_bytes, self.reserved_bytes, self.allocated_bytes, self.peak_bytes = 100, 30, 20, 25
        graph_name = "CUDAGraph" if device_type == "cuda" else "XPUGraph"
        setattr(self, graph_name, lambda: (CudaGraph if device_type == "cuda" else XpuGraph)(self))

    def is_available(self) -> bool:
        return bool(self._devices)

    def device_count(self) -> int:
        return len(self._devices)

    def get_device_properties(self, device: Any = None) -> Any:
        return self._devices[device.index if isinstance(device, torch.device) else device]

    def set_device(self, device: Any) -> None:
        self.check(device)

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        self.check(device)
        return self.free_bytes, 1000

    def memory_reserved(self, device: Any = None) -> int:
        self.check(device)
        return self.reserved_bytes

    def memory_allocated(self, device: Any = None) -> int:
        self.check(device)
        return self.allocated_bytes

    def max_memory_allocated(self, device: Any = None) -> int:
        self.check(device)
        return self.peak_bytes

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        self.check(device)
        self.peak_bytes = self.allocated_bytes

    def synchronize(self, device: Any = None) -> None:
        self.check(device)
        self.wait("synchronize device")

    def current_stream(self, device: Any = None) -> Stream:
        self.check(device)
        return self._current

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def Stream(self, device: Any) -> Stream:
        self.check(device)
        return Stream(self, "side")

    def Event(self) -> Event:
        return Event(self)

    def check(self, device: Any) -> None:
        """Only the one device that was opened is asked for."""
        assert device == torch.device(self._type, 0)

    def wait(self, what: str) -> None:
        """The host waits, which a recording forbids."""
        assert self.recording is None, "nothing may be waited for while a graph is recorded"
        self.log.append(what)

    def launch(self, work: str) -> None:
        """What a test's work does: it is run by the current stream, or recorded."""
        if self.recording is not None:
            self.recording.launches.append(work)
        else:
            self.log.append(f"{self._current.name}: {work}")

    @property
    def on_default_stream(self) -> bool:
        return self._current is self._default


class Stream:
    def __init__(self, module: FakeAccelerator, name: str) -> None:
        self._module = module
        self.name = name

    def wait_stream(self, stream: Stream) -> None:
        self._module.log.append(f"{self.name} waits for {stream.name}")

    def synchronize(self) -> None:
        self._module.wait(f"synchronize {self.name}")


class Event:
    def __init__(self, module: FakeAccelerator) -> None:
        self._module = module

    def record(self, stream: Stream) -> None:
        self._module.log.append(f"event on {stream.name}")

    def synchronize(self) -> None:
        self._module.wait("wait for event")


class Pool:
    """Lives as long as one of its graphs."""


class Graph:
    """What torch's graphs have in common.

    Attributes:
        launches: what was recorded.
    """

    def __init__(self, module: FakeAccelerator) -> None:
        self._module = module
        self._pool: Pool | None = None
        self._is_recorded = False
        self.launches: list[str] = []

    def begin(self, pool: weakref.ref[Pool] | None) -> None:
        assert not self._module.on_default_stream, "the default stream cannot be recorded"
        assert self._module.recording is None
        self._pool = Pool() if pool is None else pool()
        assert self._pool is not None, "the pool has died with its last graph"
        self._module.recording = self

    def capture_end(self) -> None:
        assert self._module.recording is self
        self._module.recording = None
        self._is_recorded = True

    def replay(self) -> None:
        assert self._is_recorded
        for work in self.launches:
            self._module.launch(work)

    def pool(self) -> weakref.ref[Pool]:
        assert self._pool is not None
        return weakref.ref(self._pool)


class CudaGraph(Graph):
    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        assert capture_error_mode == "thread_local", "a heartbeat's thread may use the device meanwhile"
        self.begin(pool)


class XpuGraph(Graph):
    def capture_begin(self, pool: Any = None) -> None:
        self.begin(pool)


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeAccelerator, device_type: str) -> None:
    """Put the stand-in where torch's module is; tensors of the device are the host's."""
    monkeypatch.setattr(torch, device_type, fake)
    empty = torch.empty

    def empty_on_host(*size: Any, device: Any = None, **rest: Any) -> Any:
        return empty(*size, **rest)

    monkeypatch.setattr(torch, "empty", empty_on_host)


def check_signatures(fake: FakeAccelerator, real: Any) -> None:
    """Every function of the stand-in is torch's, and takes what torch's takes."""
    functions = [name for name, value in vars(FakeAccelerator).items() if callable(value) and not name.startswith("_")]
    for name in set(functions) - {"check", "wait", "launch", "Stream", "Event"}:
        ours, theirs = inspect.signature(getattr(fake, name)), inspect.signature(getattr(real, name))
        assert list(ours.parameters) == list(theirs.parameters), name
    assert {"wait_stream", "synchronize"} <= set(dir(real.Stream))
    assert {"record", "synchronize"} <= set(dir(real.Event))


def check_capture(open_device: Callable[[], Any], fake: FakeAccelerator) -> None:
    """Work runs once, is recorded on a side stream that has waited, replays, and shares a pool that stays."""
    device = open_device()
    runs: list[bool] = []

    def work() -> None:
        runs.append(fake.recording is not None)
        fake.launch("work")

    for _ in range(2):
        fake.log.clear()
        runs.clear()
        graph = device.capture(work)
        assert runs == [False, True]
        assert fake.log[-4:] == ["side waits for default", "side: work", "synchronize side", "default waits for side"]
        graph.replay()
        assert fake.log[-1] == "default: work"
        # The next one is recorded into the pool although this one is gone.
        del graph


def check_failed_capture(open_device: Callable[[], Any], fake: FakeAccelerator) -> None:
    """Work that raises leaves nothing recording."""
    device = open_device()

    def work() -> None:
        if fake.recording is not None:
            raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        device.capture(work)
    assert fake.recording is None
    assert fake.on_default_stream
    device.capture(lambda: fake.launch("work")).replay()


def check_memory(open_device: Callable[[], Any], fake: FakeAccelerator) -> None:
    """What torch's allocator holds and does not use counts as free."""
    device = open_device()
    memory = device.memory()
    assert (memory.free_bytes, memory.total_bytes, memory.peak_bytes) == (110, 1000, 25)
    device.reset_peak()
    assert device.memory().peak_bytes == 20
    device.record_event().synchronize()
    device.synchronize()
    assert fake.log == ["event on default", "wait for event", "synchronize device"]
