"""``torch.hpu``."""

from contextlib import contextmanager

from fake_hpu.machine import MACHINE, HpuError, arrive

from habana_frameworks.torch.hpu import graphs, memory, metrics, random
from habana_frameworks.torch.hpu.graphs import HPUGraph, graph, wrap_in_hpu_graph
from habana_frameworks.torch.hpu.memory import mem_get_info, memory_stats, reset_peak_memory_stats


def _lazy_init():
    """Torch calls it before it makes a tensor."""


def is_available():
    return True


def device_count():
    return 1


def current_device():
    return 0


def set_device(device):
    if getattr(device, "index", device) != 0:
        raise HpuError(f"there is no device {device}")


def get_device_name(device=None):
    return "GAUDI2"


def synchronize(device=None):
    MACHINE.forbid_recording("waiting for the device")
    MACHINE.need_mark_step("the device is waited for")
    arrive(MACHINE.take_sent())


class Stream:
    """The card runs everything in order."""

    def synchronize(self):
        synchronize()


_DEFAULT = Stream()


def default_stream(device=None):
    return _DEFAULT


def current_stream(device=None):
    return _DEFAULT


@contextmanager
def stream(stream):
    yield


class Event:
    """A point in the work."""

    def __init__(self, enable_timing=False):
        self._is_recorded = False
        self._sent = []

    def record(self, stream=None):
        MACHINE.forbid_recording("an event")
        MACHINE.need_mark_step("an event is recorded")
        self._is_recorded = True
        self._sent = MACHINE.take_sent()

    def query(self):
        return True

    def synchronize(self):
        MACHINE.forbid_recording("waiting for an event")
        if not self._is_recorded:
            raise HpuError("an event is waited for that was not recorded")
        arrive(self._sent)


__all__ = [
    "Event",
    "HPUGraph",
    "Stream",
    "current_device",
    "current_stream",
    "default_stream",
    "device_count",
    "get_device_name",
    "graph",
    "graphs",
    "is_available",
    "mem_get_info",
    "memory",
    "memory_stats",
    "metrics",
    "random",
    "reset_peak_memory_stats",
    "set_device",
    "stream",
    "synchronize",
    "wrap_in_hpu_graph",
]
