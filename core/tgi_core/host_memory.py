"""The host's memory as this process may use it: /proc and the limits of control groups, version 1 and 2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


def total_memory_bytes(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Memory of the machine or of the smallest control group around this process."""
    limits = [limit for limit, _ in _cgroup_limits(proc, cgroup)]
    return min([_meminfo_bytes(proc, "MemTotal"), *limits])


def free_memory_bytes(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """What this process could still take without swapping; file caches count as free."""
    left = [limit - used for limit, used in _cgroup_limits(proc, cgroup)]
    return max(0, min([_meminfo_bytes(proc, "MemAvailable"), *left]))


def peak_memory_bytes(proc: Path = _PROC) -> int:
    """The most this process has held since its start or the last ``reset_peak_memory``; 0 where nobody counts."""
    status = _read(proc / "self" / "status")
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def reset_peak_memory(proc: Path = _PROC) -> None:
    """Let the peak start anew; without permission it goes on from the old one."""
    try:
        (proc / "self" / "clear_refs").write_text("5")
    except OSError:
        return


def _meminfo_bytes(proc: Path, key: str) -> int:
    for line in _read(proc / "meminfo").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    # Not Linux: the physical memory is the best that the standard library knows.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_limits(proc: Path, cgroup: Path) -> Iterator[tuple[int, int]]:
    """(limit, used without reclaimable file cache) of every control group around this process that has a limit."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _limits_upwards(cgroup, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = cgroup / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _limits_upwards(root, path, *names)


def _limits_upwards(
    root: Path, path: str, limit_name: str, used_name: str, cache_key: str
) -> Iterator[tuple[int, int]]:
    # Inside a container the path may be that of the host; then only the root is there.
    group = PurePosixPath(path.lstrip("/"))
    for folder in (root / group, *(root / parent for parent in group.parents)):
        limit, used = _read(folder / limit_name).strip(), _read(folder / used_name).strip()
        if limit.isdigit() and used.isdigit():
            cache = _value(_read(folder / "memory.stat"), cache_key)
            yield int(limit), int(used) - cache


def _value(stat: str, key: str) -> int:
    for line in stat.splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
