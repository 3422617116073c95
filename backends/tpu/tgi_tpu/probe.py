"""Which TPUs can be used, or what stands in the way and what would help. Imports neither torch nor jax."""

from __future__ import annotations

import os
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from tgi_core.contract import DeviceInfo, Probe
from tgi_core.host_memory import total_memory_bytes

PCI_DEVICES = Path("/sys/bus/pci/devices")
"""Where Linux has a folder for each chip."""

_GOOGLE = "0x1ae0"


class Chip(NamedTuple):
    """A kind of chip: its name, the devices that jax makes of one, and the memory of each in GiB."""

    name: str
    devices: int
    memory_gib: int


CHIPS = {
    "0x0027": Chip("TPU v3", 2, 16),
    "0x005e": Chip("TPU v4", 1, 32),
    "0x0062": Chip("TPU v5p", 1, 95),
    "0x0063": Chip("TPU v5e", 1, 16),
    "0x006f": Chip("TPU v6e", 1, 32),
    "0x0076": Chip("TPU7x", 2, 96),
}
"""By PCI device id."""


def runs_on_host() -> bool:
    """Whether the host is to stand in for TPUs: jax's own switch, set by nobody else."""
    return os.environ.get("JAX_PLATFORMS") == "cpu"


def probe_devices() -> Probe:
    """Look for TPUs. Never raises."""
    devices = _host_devices() if runs_on_host() else _tpus()
    if not devices:
        return Probe(
            reason="there is no TPU on this machine, or it is hidden from this container",
            fix="Start it on a TPU VM; a container needs --privileged or the TPU's device files. To try the backend "
            "without a TPU set JAX_PLATFORMS=cpu.",
        )
    return missing_library() or Probe(devices=tuple(devices))


def missing_library() -> Probe | None:
    """What is not installed, or does not fit together; None when all is well."""
    for name in ("torch", "jax", "torchax", *(() if runs_on_host() else ("libtpu",))):
        if not _installed(name):
            return Probe(reason=f"{name} is not installed", fix='Install it: pip install "tgi-serve[tpu]".')
    torchax, torch = _installed("torchax"), _installed("torch")
    if _numbers(torchax) < (0, 0, 14) and _numbers(torch) >= (2, 13):
        return Probe(
            reason=f"torchax {torchax} cannot be imported with torch {torch}",
            fix='Install one that can: pip install "torchax>=0.0.14.dev20260814".',
        )
    return None


def _tpus() -> list[DeviceInfo]:
    devices: list[DeviceInfo] = []
    for folder in sorted(PCI_DEVICES.glob("*")):
        chip = CHIPS.get(_read(folder / "device")) if _read(folder / "vendor") == _GOOGLE else None
        if chip is not None:
            devices += [
                DeviceInfo(len(devices) + index, chip.name, chip.memory_gib << 30) for index in range(chip.devices)
            ]
    return devices


def _host_devices() -> list[DeviceInfo]:
    asked = re.search(r"xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    count = int(asked[1]) if asked else 1
    return [DeviceInfo(index, "CPU in place of a TPU", total_memory_bytes()) for index in range(count)]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _installed(distribution: str) -> str:
    """The version of a distribution, "" when it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    return tuple(int(number) for number in re.findall(r"\d+", text.partition("+")[0])[:3])
