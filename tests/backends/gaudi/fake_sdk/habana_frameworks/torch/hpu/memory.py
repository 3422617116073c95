"""Memory of the card, to the byte."""

from fake_hpu.machine import MACHINE


def memory_stats(device=None):
    return {
        "Limit": MACHINE.total_bytes,
        "InUse": MACHINE.in_use_bytes,
        "MaxInUse": MACHINE.peak_bytes,
        "NumAllocs": 0,
        "NumFrees": 0,
        "ActiveAllocs": 0,
        "MaxAllocSize": 0,
        "TotalSystemAllocs": 0,
        "TotalSystemFrees": 0,
        "TotalActiveAllocs": 0,
    }


def mem_get_info(device=None):
    return MACHINE.total_bytes - MACHINE.in_use_bytes, MACHINE.total_bytes


def reset_peak_memory_stats(device=None):
    MACHINE.peak_bytes = MACHINE.in_use_bytes
