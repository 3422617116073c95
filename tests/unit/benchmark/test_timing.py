"""The stopwatch: turns, recording, and the time of one launch."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from tgi_core.benchmark.timing import Stopwatch
from tgi_core.contract import Device, DeviceGraph, DeviceMemory


class Recording:
    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


class Recorder(Device):
    """Records by remembering, and counts how often."""

    def __init__(self) -> None:
        self.captures = 0

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> DeviceMemory:
        return DeviceMemory(0, 0, 0)

    def synchronize(self) -> None:
        pass

    def capture(self, work: Callable[[], None]) -> DeviceGraph:
        self.captures += 1
        work()
        return Recording(work)


@pytest.mark.parametrize("graphs", [False, True])
def test_the_time_of_one_launch(graphs: bool) -> None:
    seconds = Stopwatch(Recorder(), graphs=graphs).seconds([lambda: time.sleep(0.002)])
    assert 0.002 <= seconds < 0.006


def test_only_what_may_be_recorded_is_recorded() -> None:
    device = Recorder()
    Stopwatch(device, graphs=False).seconds([lambda: None])
    Stopwatch(device, graphs=True).seconds([lambda: None], captures=False)
    assert device.captures == 0
    Stopwatch(device, graphs=True).seconds([lambda: None])
    assert device.captures == 1


def test_buffers_take_turns_in_a_recording_though_one_launch_is_long() -> None:
    runs = [0, 0, 0]

    def launch(index: int) -> None:
        runs[index] += 1
        time.sleep(0.02)

    Stopwatch(Recorder(), graphs=True).seconds([lambda index=index: launch(index) for index in range(3)])  # type: ignore[misc]
    assert max(runs) - min(runs) <= 1


def test_as_many_outputs_as_buffers_are_alive_at_once() -> None:
    alive, most = 0, 0

    class Output:
        def __init__(self) -> None:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    Stopwatch(Recorder(), graphs=False).seconds([Output] * 4)
    # The oldest goes once its successor is there.
    assert most == 5
